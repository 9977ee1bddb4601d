//! Journals whose contents the broker has lost.
//!
//! The broker records its first stream a moment after it has confirmed it. If its node is killed before
//! that, the stream never works again. Up to 4.0, every request for it is refused. From 4.1, it can be
//! declared, bound and deleted, but each read or write ends the connection. It never contained a copy.

use std::{thread, time::Duration};

use delayline_amqp::{AmqpError, Session, StreamStart, broker::Broker};
use delayline_broker::QueueInfo;
use delayline_core::shell::quoted;

/// How long the broker takes at most to record its first stream. If the node was killed after 0.7 s, all
/// streams were lost on 3.10.8 and 4.3.6; after 2 s, none.
pub const RECORDED: Duration = Duration::from_secs(3);

/// How often a journal is tried before it counts as lost, and the pause between: a stream that elects a
/// leader refuses as well.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// How a journal is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Every request is refused, including deletion.
    Stuck,
    /// It can be deleted.
    Deletable,
}

/// Whether a journal is lost, and does not refuse for another reason.
///
/// # Errors If the broker cannot be reached.
pub fn lost(broker: &Broker, journal: &QueueInfo) -> Result<Option<Lost>, AmqpError> {
    // A stream with messages was recorded.
    if journal.messages > Some(0) {
        return Ok(None);
    }
    let mut found = None;
    for tries in 0..TRIES {
        if tries > 0 {
            thread::sleep(PAUSE);
        }
        let mut session = Session::open_for(broker, "journal")?;
        found = match session.read_stream(&journal.name, StreamStart::First, 1) {
            Ok(_) => None,
            Err(error) => lost_by(&error),
        };
        if found.is_none() {
            break;
        }
    }
    Ok(found)
}

/// The kind of loss that an answer to a read request shows.
fn lost_by(error: &AmqpError) -> Option<Lost> {
    const NOT_FOUND: u16 = 404;
    const RESOURCE_ERROR: u16 = 506;
    const INTERNAL_ERROR: u16 = 541;
    match error {
        AmqpError::Channel { code: NOT_FOUND, text } if text.contains("down or inaccessible") => {
            Some(Lost::Stuck)
        }
        AmqpError::Closed { code: RESOURCE_ERROR | INTERNAL_ERROR, .. } => Some(Lost::Deletable),
        _ => None,
    }
}

/// The fault of a lost journal.
pub const WHAT: &str = "its node was killed just after it was made, so the broker lost everything \
                               except its name; it contained no copy, and none can be written";

/// The command that removes it, on any version.
pub fn way_out(queue: &str, vhost: &str) -> String {
    let text = |name: &str| format!("<<\"{}\"/utf8>>", name.replace('\\', "\\\\").replace('"', "\\\""));
    let name = format!("rabbit_misc:r({}, queue, {})", text(vhost), text(queue));
    // Up to 3.12, it needs the name.
    let eval = format!(
        "N = {name}, case erlang:function_exported(rabbit_db_queue, get_durable, 1) of true -> {{ok, Q}} = \
         rabbit_db_queue:get_durable(N), rabbit_amqqueue:internal_delete(Q, <<\"delayline\">>); false -> \
         rabbit_amqqueue:internal_delete(N, <<\"delayline\">>) end."
    );
    format!(
        "If a node of the cluster is down, start it first. If that does not help, remove `{queue}` on a node of \
         the broker: rabbitmqctl eval {}",
        quoted(&eval)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unrecorded_journal_is_lost() {
        let channel = |code, text: &str| AmqpError::Channel { code, text: text.into() };
        let closed = |code| AmqpError::Closed { code, text: String::new() };
        let down = "NOT_FOUND - home node 'a@b' of durable queue 'q' in vhost '/' is down or inaccessible";
        assert_eq!(lost_by(&channel(404, down)), Some(Lost::Stuck));
        assert_eq!(lost_by(&closed(541)), Some(Lost::Deletable));
        assert_eq!(lost_by(&closed(506)), Some(Lost::Deletable));
        for other in [channel(404, "NOT_FOUND - no queue 'q'"), channel(403, "refused"), closed(320)] {
            assert_eq!(lost_by(&other), None, "{other}");
        }
    }

    #[test]
    fn names_are_quoted_for_erlang_and_for_the_shell() {
        let command = way_out(r#"a"b\c"#, "it's");
        assert!(command.contains(r#"<<"a\"b\\c"/utf8>>"#), "{command}");
        assert!(command.contains(r#"<<"it'\''s"/utf8>>"#), "{command}");
    }
}
