//! What `delayline app` prints.

use owo_colors::OwoColorize;

use delayline_admin::{
    AddReport, AppCheck, AppEntry, AppList, AppUserEntry, Applied, DiscardReport, PauseReport, Probe,
    RemoveRefusal, RemoveReport, Waiting, named,
};
use delayline_core::codec::AppKey;
use delayline_settings::Settings;

use delayline_term::{
    Code, Failure, Output, change, findings, output::counted, output::counted_if_known, output::dry_run,
    output::grouped, output::known, output::not_installed, output::unchanged, table::table, text::readable,
};

use super::handout::Handout;

/// A report of `app add`.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Added<'a> {
    #[serde(flatten)]
    report: &'a AddReport,
    /// The values that its team needs; absent after a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    handout: Option<&'a Handout>,
}

/// A report of `app check`.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Checked<'a> {
    #[serde(flatten)]
    check: &'a AppCheck,
    /// Whether every attempt had the expected result.
    passed: bool,
}

/// What `app add` did. `unlimited`: its user may publish the longest of all delays.
pub(crate) fn added(
    settings: &Settings,
    report: &AddReport,
    handout: &Handout,
    unlimited: bool,
    output: &mut Output,
) -> Result<Code, Failure> {
    let code = match report.outcome {
        // Adding needs the set, as publishing does.
        Applied::Conflict if report.no_set => Code::Broker,
        Applied::Conflict if report.no_password => Code::Usage,
        Applied::Conflict => Code::Problem,
        _ => Code::Done,
    };
    if output.json {
        output.json(&Added { report, handout: (code == Code::Done).then_some(handout) })?;
        return Ok(code);
    }
    let found = (report.outcome, &report.steps[..], &report.conflicts[..]);
    if !change::made(&format!("application `{}`", report.app), "registered", found, output)? {
        return Ok(code);
    }
    let verb = if report.outcome == Applied::DryRun { "would remove" } else { "removed" };
    landed(report, &format!("  {verb}"), output)?;
    findings::warnings(&report.warnings, output)?;
    if unlimited {
        output.line(
            "hint: its user may publish delays of up to 8.5 years. A mistake in the unit is stored for as long: \
             1,800,000, meant as milliseconds (30 minutes), is 20.8 days. With --max-delay, such as --max-delay 7d, \
             the broker refuses longer delays",
        )?;
    }
    if report.outcome != Applied::DryRun {
        output.line("for its team (docs/for-teams):")?;
        handout.show(settings, output)?;
    }
    Ok(code)
}

/// What became of a landing queue that is not needed any more.
pub(crate) fn landed(report: &AddReport, verb: &str, output: &mut Output) -> Result<(), Failure> {
    for queue in &report.removed {
        output.line(format!("{verb} queue `{queue}`"))?;
    }
    for Waiting { queue, messages, .. } in &report.kept {
        let messages = counted_if_known(*messages, "message");
        output.line(format!("  kept queue `{queue}` with {messages}. Run this again later to remove it"))?;
    }
    Ok(())
}

pub(crate) fn removed(
    settings: &Settings,
    app: &AppKey,
    outcome: &Result<RemoveReport, RemoveRefusal>,
    output: &mut Output,
) -> Result<Code, Failure> {
    let report = match outcome {
        Ok(report) => report,
        Err(refusal) => {
            let replay = settings.command(&["held", "replay", "--kind", "unroutable", "--app", app.as_str()]);
            let unbound = format!(
                "The binding was gone for some seconds and is back. Messages that fell due meanwhile are \
                 unroutable. Send them on with: {replay}"
            );
            let wait = "Wait until the messages are processed and stop the consumers, or use --force to lose them \
                        (--keep-queue keeps the queue).";
            let unbound = refusal.unbound_meanwhile.then_some(unbound.as_str());
            let wait = (refusal.conflicts.is_empty() && refusal.is_in_use()).then_some(wait);
            let advice: Vec<_> = unbound.into_iter().chain(wait).collect();
            return change::refused(refusal, refusal.interrupted, &advice, output);
        }
    };
    if output.json {
        output.json(report)?;
        return Ok(Code::Done);
    }
    change::removed(report.dry_run, (&report.removed, &report.discarded, &report.left), output)?;
    if report.removed.is_empty() {
        output
            .line(format!("{} application `{app}` is not registered here; nothing to remove", unchanged()))?;
    } else if !report.dry_run {
        output.line(format!(
            "Messages for `{app}` that are due before it is registered again will be unroutable."
        ))?;
    }
    Ok(Code::Done)
}

pub(crate) fn paused(
    settings: &Settings,
    report: &PauseReport,
    output: &mut Output,
) -> Result<Code, Failure> {
    let found = (report.outcome, &report.steps[..], &report.conflicts[..]);
    let code = if report.outcome == Applied::Conflict { Code::Problem } else { Code::Done };
    if output.json {
        output.json(report)?;
    } else if change::made(&format!("application `{}`", report.app), "paused", found, output)? {
        let resume = settings.command(&["app", "resume", &report.app]);
        output.line(format!("Its due messages wait in `{}` until `{resume}`", report.queue))?;
    }
    Ok(code)
}

pub(crate) fn resumed(report: &PauseReport, output: &mut Output) -> Result<Code, Failure> {
    let waits = report.waiting != Some(0);
    let code = match report.outcome {
        _ if report.interrupted => Code::Interrupted,
        Applied::Conflict => Code::Problem,
        Applied::Installed if waits => Code::Problem,
        _ => Code::Done,
    };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let found = (report.outcome, &report.steps[..], &report.conflicts[..]);
    let what = format!("application `{}`", report.app);
    if report.outcome == Applied::Unchanged {
        output.line(format!("{} {what} is not paused", unchanged()))?;
    } else if change::made(&what, "resumed", found, output)? && report.outcome == Applied::Installed {
        output.line(format!("  {} of `{}` delivered", counted(report.handed_on, "message"), report.queue))?;
        if waits {
            output.line(format!(
                "  {} of `{}` not accepted yet. Run this again later to remove the queue",
                counted_if_known(report.waiting, "message").yellow(),
                report.queue
            ))?;
        }
    }
    Ok(code)
}

pub(crate) fn discarded(
    report: &DiscardReport,
    is_dry_run: bool,
    output: &mut Output,
) -> Result<Code, Failure> {
    let code = match report {
        DiscardReport { failure: Some(_), .. } => Code::Broker,
        DiscardReport { interrupted: true, .. } => Code::Interrupted,
        DiscardReport { unfinished: true, .. } => Code::Problem,
        _ => Code::Done,
    };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let verb = if is_dry_run { "would be discarded" } else { "discarded" };
    for level in &report.levels {
        output.line(format!("  {} from `{}`", counted(level.messages, "message"), level.queue))?;
    }
    let total = counted(report.messages(), "message");
    let head = match (code, is_dry_run, report.messages()) {
        (Code::Done, true, _) => format!("{} ", dry_run()),
        (Code::Done, false, 0) => format!("{} ", unchanged()),
        _ => String::new(),
    };
    output.line(format!("{head}{total} for `{}` {verb}", report.app))?;
    change::ended_early(report.failure.as_deref(), report.interrupted, output)?;
    if report.unfinished {
        output
            .line("messages keep arriving; an application may still publish. Stop it, then run this again")?;
    }
    Ok(code)
}

pub(crate) fn list(settings: &Settings, list: &AppList, output: &mut Output) -> Result<Code, Failure> {
    let code = if list.installed { Code::Done } else { Code::Problem };
    if output.json {
        output.json(list)?;
        return Ok(code);
    }
    if !list.installed {
        output.line(not_installed(settings))?;
    }
    if list.apps.is_empty() {
        if list.installed {
            let add = settings.command(&["app", "add", "APP"]);
            output.line(format!("no application is registered; register one with `{add}`"))?;
        }
        return Ok(code);
    }
    let number = |count: Option<u64>| count.map_or_else(|| "-".into(), grouped);
    let wide = output.wide;
    let rows = list.apps.iter().map(|entry| {
        let mut row = vec![key(entry), path(entry), number(entry.messages), number(entry.consumers)];
        row.extend([users(entry, |user| user.consumes, wide), users(entry, |user| user.publishes, wide)]);
        if wide {
            row.extend([&entry.queue, &entry.binding].map(|text| text.clone().unwrap_or_else(|| "-".into())));
        }
        row
    });
    let mut header = vec!["app key", "delivered to", ">messages", ">consumers", "may consume", "may publish"];
    if wide {
        header.extend(["queue", "bound with"]);
    }
    output.line(table(&header, rows))?;
    for entry in &list.apps {
        let landing = entry.landing.as_ref();
        if let Some(landing) = landing.filter(|landing| landing.messages > Some(0) && !entry.paused) {
            output.line(format!(
                "{} in `{}`: the queue or exchange behind it does not accept them",
                counted_if_known(landing.messages, "message").yellow(),
                readable(&landing.queue)
            ))?;
        }
        if entry.binding.is_none() {
            output.line(not_bound(settings, entry))?;
        } else if entry.app.is_none() {
            let bound = readable(&entry.bound.to_string());
            output.line(format!("{bound} is bound with a pattern and receives more than one key"))?;
        }
    }
    // Patterns are for those who write them.
    let mut shown = std::collections::BTreeSet::new();
    let all = list.apps.iter().flat_map(|entry| entry.users.iter().flatten()).filter(|_| wide);
    for user in all {
        if shown.insert(&user.name) {
            permissions(user, output)?;
        }
    }
    findings::unchecked(&list.unchecked, output)?;
    Ok(code)
}

/// The notes on an application without a binding.
pub(crate) fn not_bound(settings: &Settings, entry: &AppEntry) -> String {
    let app = entry.app.as_deref().unwrap_or("APP");
    format!(
        "{} is not bound: its due messages become unroutable. Run `{}` with the flags it was registered with, or \
         `{}`",
        readable(&entry.bound.to_string()),
        settings.command(&["app", "add", app]),
        settings.command(&["app", "remove", app])
    )
}

fn key(entry: &AppEntry) -> String {
    match (&entry.app, &entry.binding) {
        (Some(app), Some(_)) => app.clone(),
        (Some(app), None) => format!("{app} (not bound)"),
        (None, Some(pattern)) => format!("not exact: {pattern}"),
        (None, None) => "(not bound)".into(),
    }
}

fn path(entry: &AppEntry) -> String {
    let recall = entry.recall.as_ref().map_or_else(String::new, |it| {
        let journal = it.journal.as_ref().map_or_else(String::new, |journal| {
            format!("; journal ({})", counted_if_known(journal.messages, "message"))
        });
        let (pending, recalled) = (grouped(it.pending as u64), known(it.messages));
        format!("; recallable ({pending} pending, {recalled} recalled){journal}")
    });
    format!("{}{recall}", target(entry))
}

fn target(entry: &AppEntry) -> String {
    let Some(landing) = &entry.landing else { return entry.bound.to_string() };
    let target = match (&landing.exchange, &landing.key) {
        (exchange, Some(key)) if exchange.is_empty() => format!("queue `{key}`"),
        (exchange, Some(key)) => format!("exchange `{exchange}` as `{key}`"),
        (exchange, None) => format!("exchange `{exchange}`"),
    };
    match entry.paused {
        true => {
            format!("paused: {} in `{}`", counted_if_known(landing.messages, "message"), landing.queue)
        }
        false => format!("{target}, by way of `{}`", landing.queue),
    }
}

/// The users that have a permission, and with a question mark the users for whom it is unknown.
/// Lists the first few, or `all`.
fn users(entry: &AppEntry, may: impl Fn(&AppUserEntry) -> Option<bool>, all: bool) -> String {
    let Some(users) = &entry.users else { return "?".into() };
    let names: Vec<_> = users
        .iter()
        .filter_map(|user| match may(user) {
            Some(true) => Some(user.name.clone()),
            Some(false) => None,
            None => Some(format!("{} (?)", user.name)),
        })
        .collect();
    match names.is_empty() {
        true => "-".into(),
        false if all => names.join(", "),
        false => named(names),
    }
}

fn permissions(user: &AppUserEntry, output: &mut Output) -> Result<(), Failure> {
    let it = &user.permission;
    output.line(format!(
        "{}: configure `{}`, write `{}`, read `{}`",
        format!("user `{}`", readable(&user.name)).bold(),
        readable(&it.configure),
        readable(&it.write),
        readable(&it.read)
    ))?;
    for topic in &user.topic_permissions {
        output.line(format!(
            "  keys on `{}`: write `{}`, read `{}`",
            readable(&topic.exchange),
            readable(&topic.write),
            readable(&topic.read)
        ))?;
    }
    Ok(())
}

pub(crate) fn checked(check: &AppCheck, output: &mut Output) -> Result<Code, Failure> {
    let code = if check.passed() && !check.probes.is_empty() { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&Checked { check, passed: code == Code::Done })?;
        return Ok(code);
    }
    let may = |allowed: bool| if allowed { "may" } else { "may not" };
    // Twenty-eight identical lines would not help.
    let level = |probe: &&Probe| {
        probe.passed() && probe.what.starts_with("consume") && probe.what.contains(".level.")
    };
    let levels = check.probes.iter().filter(level).count();
    let mut probes: Vec<_> = check.probes.iter().filter(|probe| !level(probe)).cloned().collect();
    if let Some(first) = check.probes.iter().position(|probe| level(&probe)) {
        let what = format!("consume or purge {}", counted(levels as u64, "level"));
        probes.insert(first, Probe { what, ..check.probes[first].clone() });
    }
    let rows = probes.iter().map(|probe| {
        let mark = if probe.passed() { "✓" } else { "✗" };
        let found = probe.allowed.map_or("missing", may);
        let wrong =
            if probe.passed() { String::new() } else { format!("should be: {}", may(probe.expected)) };
        vec![mark.into(), found.into(), probe.what.clone(), wrong]
    });
    output.line(table(&["", "", "tried as the user", ""], rows))?;
    findings::unchecked(&check.unchecked, output)?;
    for limit in &check.limits {
        output.line(format!("{} {limit}", "limit:".yellow().bold()))?;
    }
    let wrong = check.probes.iter().filter(|probe| !probe.passed()).count();
    let tried = counted(check.probes.len() as u64, "thing");
    output.line(match (wrong, code) {
        (0, Code::Done) => format!("user `{}`: {tried} tried, {}", check.user, "all correct".green()),
        (0, _) => format!("user `{}`: {}", check.user, "nothing could be tried".red()),
        (wrong, _) => {
            let wrong = format!("{wrong} wrong");
            format!("user `{}`: {tried} tried, {}", check.user, wrong.red())
        }
    })?;
    Ok(code)
}
