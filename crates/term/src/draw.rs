//! Draws a picture on a screen.

use jiff::Timestamp;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Paragraph, Wrap},
};

use delayline_admin::Severity;
use delayline_watch::picture::{LayoutView, Level, Picture, Verdict};

use crate::{output::grouped, text};

/// The width of the column beside the levels, and the width of screen that it needs.
const ASIDE: u16 = 40;
const WIDE: u16 = 112;

/// Bar characters, in eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// The columns before and after a bar.
const BESIDE_BAR: u16 = 9 + 12 + 14;

/// Draws a picture, its levels from `offset` on if they do not all fit; returns the offset
/// that was possible.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture, offset: usize) -> usize {
    let words = (text::place(picture), &picture.verdict, text::trouble(picture));
    let middle = around(frame, words);
    let beside = aside(picture);
    if middle.width >= WIDE {
        let [left, _, right] =
            Layout::horizontal([Constraint::Min(40), Constraint::Length(3), Constraint::Length(ASIDE)])
                .areas(middle);
        frame.render_widget(Paragraph::new(beside).wrap(Wrap { trim: false }), right);
        return cascade(frame, (&picture.levels, picture.at), left, offset);
    }
    above(frame, (&picture.levels, picture.at), middle, summary(picture), offset)
}

/// Draws a layout, likewise.
pub fn draw_layout(frame: &mut Frame<'_>, view: &LayoutView, offset: usize) -> usize {
    let now = Timestamp::now();
    let place = format!("layout {} in vhost {}", view.layout, view.vhost);
    let seen = view.counted.map(|at| format!(" · counted {} ago", text::ago(now, at)));
    let place = text::readable(&(place + &seen.unwrap_or_default()));
    let trouble = view.problem.as_deref().map(text::readable);
    let middle = around(frame, (place, &view.verdict, trouble));
    let mut below = vec![Line::default()];
    if view.counted.is_some() {
        let [handing_on, stuck] = [view.handing_on, view.stuck].map(text::number);
        below.push(Line::from(format!(
            "{} waiting, {handing_on} handed on, {stuck} stuck",
            text::messages(view.waiting)
        )));
    }
    if let (Some(guarded), Some(exchanges)) = (view.guarded, view.exchanges) {
        let guard =
            text::guard(&view.layout, (guarded, exchanges), (view.keeps == Some(true), view.unroutable));
        below.push(Line::from(format!("guard: {}", text::readable(&guard))));
    }
    let unchecked = view.unchecked.iter().map(|it| format!("not checked: {}", text::readable(it)));
    below.extend(unchecked.map(|line| Line::styled(line, dim())));
    above(frame, (&view.levels, view.counted.unwrap_or(now)), middle, below, offset)
}

/// Draws what is above and below the rest; returns the room for that.
fn around(frame: &mut Frame<'_>, (place, verdict, trouble): (String, &Verdict, Option<String>)) -> Rect {
    let head = heading(place, verdict, trouble, frame.area().width);
    let height = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(height), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    frame.render_widget(Line::styled("q quit   ↑ ↓ scroll", dim()), bottom);
    middle
}

/// Draws levels above these lines.
fn above(
    frame: &mut Frame<'_>,
    levels: (&[Level], Timestamp),
    area: Rect,
    below: Vec<Line<'static>>,
    offset: usize,
) -> usize {
    let room = u16::try_from(below.len()).unwrap_or(0).min(area.height.saturating_sub(4));
    let [upper, lower] = Layout::vertical([Constraint::Min(3), Constraint::Length(room)]).areas(area);
    frame.render_widget(Paragraph::new(below), lower);
    cascade(frame, levels, upper, offset)
}

/// `NO_COLOR` turns colours off; nothing is shown by colour alone.
fn colour(colour: Color) -> Style {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain { Style::new() } else { Style::new().fg(colour) }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn alarm() -> Style {
    colour(Color::Yellow).add_modifier(Modifier::BOLD)
}

fn sign(severity: Option<Severity>) -> (&'static str, Style) {
    match severity {
        None => ("✓", colour(Color::Cyan).add_modifier(Modifier::BOLD)),
        Some(Severity::Info) => ("i", dim()),
        Some(Severity::Advice) => ("▲", alarm()),
        Some(Severity::Problem) => ("■", colour(Color::LightRed).add_modifier(Modifier::BOLD)),
    }
}

fn heading(place: String, verdict: &Verdict, trouble: Option<String>, width: u16) -> Vec<Line<'static>> {
    let (mark, style) = sign(verdict.severity);
    let mut lines = vec![
        Line::styled(place, dim()),
        Line::default(),
        Line::from(vec![
            Span::styled(format!("{mark} "), style),
            Span::styled(text::readable(&verdict.headline), style.patch(bold())),
        ]),
    ];
    let wide = usize::from(width).saturating_sub(2).max(20);
    let folded = |words: &str, style: Style| {
        let parts = textwrap::wrap(words, wide).into_iter();
        parts.map(|part| Line::styled(format!("  {part}"), style)).collect::<Vec<_>>()
    };
    if let Some(trouble) = trouble {
        lines.extend(folded(&trouble, Style::new()));
    }
    for remark in verdict.more.iter().take(3) {
        let (mark, style) = sign(Some(remark.severity));
        lines.push(Line::styled(format!("{mark} {}", text::readable(&remark.text)), style));
    }
    lines.push(Line::default());
    lines
}

fn cascade(frame: &mut Frame<'_>, (levels, at): (&[Level], Timestamp), area: Rect, offset: usize) -> usize {
    let bar = area.width.saturating_sub(BESIDE_BAR);
    let header = format!("{:>8} {}{:>12}{:>14}", "stays", " ".repeat(bar.into()), "waiting", "due, ▲ stuck");
    let room = usize::from(area.height.saturating_sub(1));
    let busy = |level: &&Level| level.ready != Some(0) || level.handing_on.unwrap_or(0) > 0;
    // If not all levels fit, the longest empty ones are left out first.
    let surplus = levels.len().saturating_sub(room);
    let mut leave_out = surplus;
    let shown: Vec<&Level> = levels
        .iter()
        .filter(|level| {
            let left_out = leave_out > 0 && !busy(level);
            leave_out -= usize::from(left_out);
            !left_out
        })
        .collect();
    let offset = offset.min(shown.len().saturating_sub(room));
    let most = levels.iter().filter_map(|level| level.ready).max().unwrap_or(0).max(9_999);
    let mut lines = vec![Line::styled(header, dim())];
    lines.extend(shown.into_iter().skip(offset).take(room).map(|level| row(level, at, bar, most)));
    frame.render_widget(Paragraph::new(lines), area);
    offset
}

fn row(level: &Level, at: Timestamp, width: u16, most: u64) -> Line<'static> {
    let ready = level.ready.unwrap_or(0);
    let (due, stuck) = (level.handing_on.unwrap_or(0), level.stuck.unwrap_or(0));
    let idle = ready == 0 && due == 0;
    let waiting = match level.ready {
        None => "missing".into(),
        Some(0) => "·".into(),
        Some(ready) => grouped(ready),
    };
    let held = match level.stuck_since {
        Some(since) if stuck > 0 => format!("▲ {} {}", grouped(stuck), text::ago(at, since)),
        // Messages that move are no alarm, however many there are.
        _ if due > 0 => grouped(due),
        _ => String::new(),
    };
    let bar = bar(ready, most, width);
    let pad = usize::from(width).saturating_sub(bar.chars().count());
    Line::from(vec![
        Span::styled(format!("{:>8} ", text::span(level.wait_ms)), if idle { dim() } else { Style::new() }),
        Span::styled(bar, colour(Color::Cyan)),
        Span::raw(" ".repeat(pad)),
        Span::styled(format!("{waiting:>12}"), if idle { dim() } else { bold() }),
        Span::styled(format!("{held:>14}"), if level.stuck_since.is_some() { alarm() } else { dim() }),
    ])
}

/// A bar on a logarithmic scale, `width` columns for `most`.
fn bar(count: u64, most: u64, width: u16) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a length of some eighths of a column")]
    let length = |count: u64| (count as f64 + 1.0).log10();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, not long")]
    let eighths = (length(count) / length(most) * f64::from(width) * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// The column beside the levels.
fn aside(picture: &Picture) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled("Due next", bold())];
    for forecast in &picture.forecast {
        lines.push(Line::from(format!("  {:8}{}", forecast.within, text::due(forecast))));
    }
    lines.extend([Line::default(), Line::styled("Flow", bold())]);
    lines.push(Line::from(format!("  published         {} /s", text::rate(picture.rates.entry_per_s))));
    lines.push(Line::from(format!("  to applications   {} /s", text::rate(picture.rates.dispatch_per_s))));
    lines.extend([Line::default(), Line::styled("Kept", bold())]);
    for (name, count, new) in [
        ("unroutable", picture.unroutable, picture.unroutable_last_minute),
        ("parked", picture.parked, picture.parked_last_minute),
        ("failed", picture.retry, None),
    ] {
        let style = if new.is_some_and(|new| new > 0) { alarm() } else { Style::new() };
        lines.push(Line::styled(format!("  {name:12}{}", text::kept(count, new)), style));
    }
    for view in picture.recalls.iter().flatten() {
        let (app, pending) = (text::readable(&view.app), view.pending.unwrap_or(0));
        if pending > 0 {
            lines.push(Line::from(format!("  recalls     {} of {app}", grouped(pending))));
        }
        if view.recalled != Some(0) {
            lines.push(Line::from(format!("  recalled    {} of {app}", text::number(view.recalled))));
        }
    }
    for view in picture.gateways.iter().flatten() {
        let style = if view.channels == Some(0) && view.waiting > Some(0) { alarm() } else { Style::new() };
        let [waiting, due] = [view.waiting, view.due].map(text::number);
        let gateway = text::readable(&view.gateway);
        lines.push(Line::styled(
            format!("  gateway     {gateway}: {waiting} to be taken, {due} due soon"),
            style,
        ));
    }
    for unchecked in &picture.unchecked {
        lines.push(Line::styled(format!("not checked: {}", text::readable(unchecked)), dim()));
    }
    lines
}

/// The same in a few lines, for a narrow screen.
fn summary(picture: &Picture) -> Vec<Line<'static>> {
    let stuck = text::number(picture.stuck);
    let waiting = format!("{} waiting, {stuck} stuck", text::messages(picture.waiting));
    let due = picture.forecast.iter().map(|due| format!("{} ≈ {}", due.within, grouped(due.estimate)));
    let due = due.collect::<Vec<_>>().join(", ");
    let kept = [("unroutable", picture.unroutable), ("parked", picture.parked), ("failed", picture.retry)];
    let kept = kept.map(|(name, count)| format!("{name} {}", text::number(count))).join(", ");
    vec![
        Line::default(),
        Line::from(waiting),
        Line::from(if due.is_empty() { due } else { format!("due in the next {due}") }),
        Line::from(kept),
    ]
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use delayline_watch::picture::{Verdict, sample};

    fn screen(picture: &Picture, size: (u16, u16), offset: usize) -> String {
        rows(size, |frame| draw(frame, picture, offset))
    }

    fn rows((width, height): (u16, u16), drawing: impl Fn(&mut Frame<'_>) -> usize) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| {
                drawing(frame);
            })
            .unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content.chunks(width.into());
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    fn picture() -> Picture {
        let mut picture = sample::nothing();
        (picture.broker.reachable, picture.counted) = (true, Some(picture.at));
        for level in &mut picture.levels {
            level.ready = Some(if level.level % 3 == 0 { 10_u64.pow(u32::from(level.level) / 6) } else { 0 });
            (level.handing_on, level.stuck) = (Some(0), Some(0));
        }
        (picture.levels[24].handing_on, picture.levels[24].stuck) = (Some(20), Some(20));
        picture.levels[24].stuck_since = Some(picture.at);
        picture.waiting = Some(22_222);
        picture.verdict = Verdict::of(&picture);
        picture
    }

    #[test]
    fn a_large_screen_has_every_level_and_all_beside_it() {
        let screen = screen(&picture(), (140, 40), 0);
        for text in ["4.3 y", "1 s", "10,000", "▲ 20 0 s", "Due next", "unroutable", "q quit"] {
            assert!(screen.contains(text), "{text} in\n{screen}");
        }
        for level in &picture().levels {
            let row = format!("{:>8} ", text::span(level.wait_ms));
            assert!(screen.lines().any(|line| line.starts_with(&row)), "{row} in\n{screen}");
        }
    }

    #[test]
    fn a_small_screen_leaves_out_what_is_empty() {
        let screen = screen(&picture(), (80, 24), 0);
        // All ten levels that hold messages, and as many empty levels as fit.
        for text in ["4.3 y", "194 d", "8 s", "1 s", "▲ 20 0 s", "22,222 messages waiting"] {
            assert!(screen.contains(text), "{text} in\n{screen}");
        }
        assert!(!screen.contains("2.1 y"), "{screen}");
    }

    #[test]
    fn any_screen_can_be_drawn_on() {
        for size in [(1, 1), (10, 3), (40, 10), (111, 12), (112, 12), (500, 200)] {
            screen(&picture(), size, 1_000);
        }
    }

    #[test]
    fn the_delays_of_others_are_drawn_alike() {
        let mut view = sample::layout();
        (view.levels[20].ready, view.waiting) = (Some(12_345), Some(12_345));
        let screen = rows((100, 24), |frame| draw_layout(frame, &view, 0));
        let told =
            ["layout nservicebus in vhost /", "No message is stuck.", "12,345 messages waiting", "2.1 min"];
        for text in told.iter().chain(&["guard: set, and keeps 0 messages", "q quit"]) {
            assert!(screen.contains(text), "{text} in\n{screen}");
        }
        let unseen = LayoutView::unseen(view.layout, "/");
        for size in [(1, 1), (40, 10), (500, 200)] {
            rows(size, |frame| draw_layout(frame, &unseen, 1_000));
        }
    }

    #[test]
    fn bars_are_logarithmic() {
        assert_eq!(bar(0, 9_999, 8), "");
        assert_eq!(bar(9_999, 9_999, 8), "████████");
        assert_eq!(bar(99, 9_999, 8), "████");
    }
}
