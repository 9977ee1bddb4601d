//! Whether a daemon can do its work: pure.

use delayline_watch::{
    picture::{LayoutView, Picture},
    web::{Check, Readiness},
};

/// The daemon is ready if it reaches the broker and the set matches its definition. If it only watches
/// layouts, it is ready if it can count them.
pub(crate) fn readiness(picture: &Picture) -> Readiness {
    let mut checks = vec![broker(picture), set(picture)];
    checks.extend(publishing(picture));
    if picture.verified.awaited {
        checks.extend(picture.layouts.iter().map(layout));
    }
    Readiness { checks }
}

fn broker(picture: &Picture) -> Check {
    let broker = &picture.broker;
    let since = broker.since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
    let reached = match &broker.problem {
        Some(problem) => problem.clone(),
        None => format!("{} answers", broker.address),
    };
    Check { name: "broker", ok: broker.reachable, reason: format!("{reached}{since}") }
}

/// A daemon sends messages on, and cannot do that while a node is in alarm.
fn publishing(picture: &Picture) -> Option<Check> {
    let alarms = picture.broker.alarms.as_deref().filter(|alarms| !alarms.is_empty())?;
    let reason = format!("the broker accepts no messages: alarm on {}", alarms.join(", "));
    Some(Check { name: "publishing", ok: false, reason })
}

fn set(picture: &Picture) -> Check {
    let set = &picture.verified;
    let reason = match (set.ok, set.problems.first(), set.unchecked.first()) {
        _ if set.awaited => picture.without_set(),
        (Some(true), _, not) if set.is_partial() => {
            let not = not.map_or("bindings", String::as_str);
            format!("set `{}` matches its definition; not checked: {not}", picture.set)
        }
        (Some(true), _, _) => format!("set `{}` matches its definition", picture.set),
        (Some(false), Some(first), _) if set.problems.len() == 1 => first.clone(),
        (Some(false), Some(first), _) => format!("{first}; and {} more", set.problems.len() - 1),
        (_, _, Some(reason)) => format!("the set could not be compared: {reason}"),
        (_, _, None) => "the set was not compared yet".into(),
    };
    Check { name: "set", ok: set.ok == Some(true) || set.awaited, reason }
}

fn layout(view: &LayoutView) -> Check {
    let name = &view.layout;
    let (ok, reason) = match (&view.problem, view.counted) {
        (Some(problem), _) => (false, format!("layout `{name}` cannot be seen: {problem}")),
        (None, None) => (false, format!("layout `{name}` was not counted yet")),
        (None, Some(at)) => (true, format!("layout `{name}` was counted at {at:.0}")),
    };
    Check { name: "layout", ok, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_watch::picture::sample;

    fn failing(picture: &Picture) -> Vec<String> {
        let checks = readiness(picture).checks.into_iter().filter(|check| !check.ok);
        checks.map(|check| check.reason).collect()
    }

    #[test]
    fn a_daemon_is_not_ready_while_the_broker_blocks_publishers() {
        let mut picture = sample::nothing();
        (picture.broker.reachable, picture.verified.ok) = (true, Some(true));
        for alarms in [None, Some(Vec::new())] {
            picture.broker.alarms = alarms;
            assert_eq!(failing(&picture), [""; 0]);
        }
        picture.broker.alarms = Some(vec!["a@b (memory)".into()]);
        assert_eq!(failing(&picture), ["the broker accepts no messages: alarm on a@b (memory)"]);
    }

    #[test]
    fn without_a_set_the_layouts_have_to_be_seen() {
        let mut picture = sample::nothing();
        (picture.broker.reachable, picture.broker.problem) = (true, None);
        (picture.verified.ok, picture.verified.installed) = (Some(false), Some(false));
        picture.verified.problems = vec!["the set is missing".into()];
        picture.layouts = vec![sample::layout(), LayoutView::unseen("celery".parse().unwrap(), "/")];
        assert_eq!(failing(&picture), ["the set is missing"]);

        picture.verified.awaited = true;
        assert_eq!(failing(&picture), ["layout `celery` was not counted yet"]);
        picture.layouts[1].problem = Some("it is not there".into());
        assert_eq!(failing(&picture), ["layout `celery` cannot be seen: it is not there"]);
        picture.layouts.pop();
        assert_eq!(failing(&picture), [""; 0]);
        let checks = readiness(&picture).checks;
        assert_eq!(checks[1].reason, "No set `delay` here; watching nservicebus");
        assert_eq!(checks.len(), 3);
        picture.broker.reachable = false;
        assert_eq!(failing(&picture).len(), 1);
    }
}
