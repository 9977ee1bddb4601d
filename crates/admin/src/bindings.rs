//! The bindings of a vhost, without those that are recalls.

use crate::management::{BindingInfo, ExchangeInfo, ManagementApi, ManagementError, QueueInfo};

/// All bindings of a vhost but those of the exchanges for recalls. There may be a hundred
/// thousand of these, and a broker that lists so many takes seconds and hundreds of megabytes.
/// Of theirs, only those are read that lead to the entry of their set, which their applications
/// can make.
pub(crate) fn bindings(
    api: &ManagementApi,
    vhost: &str,
    exchanges: &[ExchangeInfo],
    queues: &[QueueInfo],
) -> Result<Vec<BindingInfo>, ManagementError> {
    if exchanges.iter().all(|exchange| for_recalls(exchange, queues).is_none()) {
        return api.bindings(vhost);
    }
    let mut found = Vec::new();
    for exchange in exchanges.iter().filter(|exchange| !exchange.name.is_empty()) {
        found.extend(match for_recalls(exchange, queues) {
            // The entry has the name of the set.
            Some(set) => api.bindings_between(vhost, &exchange.name, set)?,
            None => api.bindings_from(vhost, &exchange.name)?,
        });
    }
    Ok(found)
}

/// The set whose recalls an exchange has, if it has any.
fn for_recalls<'a>(exchange: &'a ExchangeInfo, queues: &[QueueInfo]) -> Option<&'a str> {
    // The name of a set has no dot.
    let (set, rest) = exchange.name.split_once('.')?;
    let queue = format!("{set}.recalled.{}", rest.strip_prefix("recall.")?);
    (exchange.kind == "direct" && queues.iter().any(|info| info.name == queue)).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exchanges_for_recalls_are_told_apart() {
        let queues = ["delay.recalled.billing", "other.recalled.a.b"]
            .map(|name| QueueInfo { name: name.into(), ..QueueInfo::default() });
        let set = |name: &str, kind: &str| {
            let exchange = ExchangeInfo { name: name.into(), kind: kind.into(), ..ExchangeInfo::default() };
            for_recalls(&exchange, &queues).map(str::to_owned)
        };
        assert_eq!(set("delay.recall.billing", "direct").as_deref(), Some("delay"));
        assert_eq!(set("other.recall.a.b", "direct").as_deref(), Some("other"));
        for (name, kind) in [
            ("delay.recall.billing", "topic"),
            ("delay.recall.orders", "direct"),
            ("other.recall.billing", "direct"),
            ("delay.through.billing", "direct"),
            ("delay", "direct"),
            ("", "direct"),
        ] {
            assert_eq!(set(name, kind), None, "{name}");
        }
    }
}
