//! `delayline status --watch` on a terminal.

use std::{
    fs::File,
    io::{self, IsTerminal},
    os::fd::AsFd,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
};

use delayline_admin::{Layout, RecallStats, Sweeper};
use delayline_broker::Survey;
use delayline_settings::Settings;
use delayline_watch::picture::{Sources, Watch, watch_layouts};

use delayline_term::{Code, Failure, draw, ending};

/// How often recalls are counted, at most: the broker lists them all.
const COUNTED_EVERY: Duration = Duration::from_secs(60);

/// How often to check for keys and signals.
const TICK: Duration = Duration::from_millis(200);

/// Whether there is a terminal for a screen.
pub(super) fn is_possible() -> bool {
    io::stdout().is_terminal()
}

/// Shows the set, or the delays of a layout, until a key or a signal ends it.
pub(super) fn run(layout: Option<&Layout>, settings: Settings) -> Result<Code, Failure> {
    let stop = ending::on_signal()?;
    // Once the terminal is gone, reading keys never ends and no flag is checked.
    let keys: Vec<Box<dyn AsFd + Send>> = match io::stdin().is_terminal() {
        true => vec![Box::new(io::stdin())],
        false => vec![Box::new(File::open("/dev/tty")?)],
    };
    ending::end_without_reader(keys)?;
    match layout {
        Some(layout) => {
            let mut settings = settings;
            settings.layouts = vec![layout.clone()];
            let seen = watch_layouts(&settings, &Arc::new(Survey::new(&settings)), &stop);
            let view = || seen.lock().unwrap_or_else(PoisonError::into_inner)[0].clone();
            on_screen(|terminal| {
                show(terminal, &stop, |frame, offset| draw::draw_layout(frame, &view(), offset))
            })?;
        }
        None => {
            let stats = Arc::new(RecallStats::default());
            let counter = Sweeper::new(settings.clone(), Arc::clone(&stats));
            let counter = counter.only_counting().every(COUNTED_EVERY);
            // It may be waiting for an answer when everything else ends.
            let counting = Arc::clone(&stop);
            thread::spawn(move || counter.run(&counting));
            let watch = Watch::start(settings, Sources { recalls: Some(stats), ..Sources::default() });
            let live = watch.live();
            on_screen(|terminal| {
                show(terminal, &stop, |frame, offset| draw::draw(frame, &live.picture(), offset))
            })?;
        }
    }
    Ok(Code::Done)
}

/// Takes over the whole screen and restores it afterwards, even after a panic.
fn on_screen(work: impl FnOnce(&mut DefaultTerminal) -> io::Result<()>) -> io::Result<()> {
    let ended = work(&mut ratatui::try_init()?);
    ratatui::try_restore()?;
    ended
}

/// Draws again and again, from the level on that `drawing` last said was possible.
fn show(
    terminal: &mut DefaultTerminal,
    stop: &AtomicBool,
    drawing: impl Fn(&mut Frame<'_>, usize) -> usize,
) -> io::Result<()> {
    let mut offset = 0;
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| offset = drawing(frame, offset))?;
        if !event::poll(TICK)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Down | KeyCode::Char('j') => offset += 1,
                KeyCode::Up | KeyCode::Char('k') => offset = offset.saturating_sub(1),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use portable_pty::{CommandBuilder, PtySize, native_pty_system};

    use super::*;

    #[test]
    #[ignore = "run by the next test, in a terminal"]
    fn panics_on_the_screen() {
        let _ = on_screen(|_| panic!("on purpose"));
    }

    #[test]
    fn a_panic_leaves_the_screen_in_order() {
        let pty = native_pty_system().openpty(PtySize::default()).unwrap();
        let before = format!("{:?}", pty.master.get_termios());
        let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "cmd::status::screen::tests::panics_on_the_screen",
            "--ignored",
            "--nocapture",
        ]);
        let mut child = pty.slave.spawn_command(command).unwrap();
        let mut reader = pty.master.try_clone_reader().unwrap();
        let written = std::thread::spawn(move || {
            let (mut all, mut part) = (Vec::new(), [0; 4_096]);
            // A terminal whose other end is closed gives an error, not an end.
            while let Ok(length @ 1..) = reader.read(&mut part) {
                all.extend_from_slice(&part[..length]);
            }
            all
        });
        assert!(!child.wait().unwrap().success());
        assert_eq!(format!("{:?}", pty.master.get_termios()), before);
        drop(pty);
        let written = written.join().unwrap();
        let mut screen = vt100::Parser::default();
        screen.process(&written);
        let text = String::from_utf8_lossy(&written);
        assert!(text.contains("\u{1b}[?1049h"), "{text}");
        assert!(!screen.screen().alternate_screen() && !screen.screen().hide_cursor(), "{text}");
        assert!(text.contains("on purpose"), "{text}");
    }
}
