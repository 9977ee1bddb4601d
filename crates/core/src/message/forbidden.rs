//! Headers that are never sent on: pure. This is the only list of them.

use super::Headers;

/// When a quorum queue should deliver a message, in ms since the epoch.
const DELIVERY_TIME: &str = "x-opt-delivery-time";

/// The same, as a duration from the message's arrival.
const DELIVERY_DELAY: &str = "x-opt-delivery-delay";

/// Whether a header would change where or when a message goes, or make a broker drop it. `CC` and
/// `BCC` copy it at every exchange. A republished `x-death` makes brokers up to 3.13 see a
/// dead-letter cycle. Quorum queues of future versions hold back a message with its own delivery
/// time, in each level again.
pub fn is_forbidden(name: &str) -> bool {
    matches!(name, "CC" | "BCC" | "x-death" | "x-delivery-count" | DELIVERY_TIME | DELIVERY_DELAY)
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

/// The headers of a message without forbidden ones.
pub(super) fn allowed(headers: &Headers) -> Headers {
    let allowed = headers.iter().filter(|(name, _)| !is_forbidden(name));
    allowed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether a header of the message makes a quorum queue of a future version hold it back.
pub fn asks_to_be_held(headers: &Headers) -> bool {
    [DELIVERY_TIME, DELIVERY_DELAY].iter().any(|name| headers.contains_key(*name))
}
