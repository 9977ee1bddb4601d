//! Whether a daemon can do its work: pure.

use delayline_watch::{
    picture::{LayoutView, Picture},
    web::{Check, Readiness},
};

/// The daemon is ready if it reaches the broker and has seen that the set is as it should be, or,
/// where it is there for the delays of others alone, that it can count them.
pub(super) fn readiness(picture: &Picture) -> Readiness {
    let mut checks = vec![broker(picture), set(picture)];
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

fn set(picture: &Picture) -> Check {
    let set = &picture.verified;
    let reason = match (set.ok, set.problems.first(), set.unchecked.first()) {
        _ if set.awaited => picture.without_set(),
        (Some(true), _, not) if set.is_partial() => {
            let not = not.map_or("bindings", String::as_str);
            format!("set `{}` is as it should be; not checked: {not}", picture.set)
        }
        (Some(true), _, _) => format!("set `{}` is as it should be", picture.set),
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
        (None, None) => (false, format!("layout `{name}` was not looked at yet")),
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
    fn without_a_set_the_layouts_have_to_be_seen() {
        let mut picture = sample::nothing();
        (picture.broker.reachable, picture.broker.problem) = (true, None);
        (picture.verified.ok, picture.verified.installed) = (Some(false), Some(false));
        picture.verified.problems = vec!["the set is missing".into()];
        picture.layouts = vec![sample::layout(), LayoutView::unseen("celery".parse().unwrap(), "/")];
        assert_eq!(failing(&picture), ["the set is missing"]);

        picture.verified.awaited = true;
        assert_eq!(failing(&picture), ["layout `celery` was not looked at yet"]);
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
