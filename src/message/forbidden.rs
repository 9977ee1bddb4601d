//! Headers that are never sent on: pure. The one list of them.

use super::Headers;

/// When a quorum queue is to hand a message out, in ms since the epoch.
const DELIVERY_TIME: &str = "x-opt-delivery-time";

/// The same, as a time from when it came.
const DELIVERY_DELAY: &str = "x-opt-delivery-delay";

/// Whether a header would change where or when a message goes, or make a broker drop
/// it: `CC` and `BCC` copy it at every exchange, a republished `x-death` makes brokers
/// up to 3.13 see a dead-letter cycle, and quorum queues of coming versions hold a
/// message back that names its own time, each level anew.
pub fn is_forbidden(name: &str) -> bool {
    matches!(name, "CC" | "BCC" | "x-death" | "x-delivery-count" | DELIVERY_TIME | DELIVERY_DELAY)
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

/// Whether a message has a header by which a quorum queue of a coming version would
/// hold it back.
pub fn asks_to_be_held(headers: &Headers) -> bool {
    [DELIVERY_TIME, DELIVERY_DELAY].iter().any(|name| headers.contains_key(*name))
}
