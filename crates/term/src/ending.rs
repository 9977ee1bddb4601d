//! When a command has to end: a signal came, or the reader of its output is gone.

use std::{
    fs, io,
    os::fd::AsFd,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use crate::code::Code;

/// What signals set, once a command has asked for it.
struct Asked {
    /// By Ctrl-C or SIGTERM.
    ended: Arc<AtomicBool>,
    /// By these, and when the terminal goes away.
    stop: Arc<AtomicBool>,
}

static ASKED: Mutex<Option<Asked>> = Mutex::new(None);

/// A flag that is set by Ctrl-C, by SIGTERM and when the terminal goes away. A second Ctrl-C
/// or SIGTERM ends the process at once. All callers get the same flag.
///
/// A command asks for it only once it has something to clean up. Before that, and in all
/// other commands, the signal ends the process, which shells also count as 130.
pub fn on_signal() -> io::Result<Arc<AtomicBool>> {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(asked) = &*asked {
        // Registered a second time, the first signal would count as a second one.
        return Ok(Arc::clone(&asked.stop));
    }
    let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM] {
        let interrupted = Code::Interrupted.number().into();
        // The order matters: the conditional shutdown must see the flag as it was before.
        flag::register_conditional_shutdown(signal, interrupted, Arc::clone(&ended))?;
        flag::register(signal, Arc::clone(&ended))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    // SIGHUP comes from several sides at once. With `nohup` the command has to go on.
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, Arc::clone(&stop))?;
    }
    *asked = Some(Asked { ended, stop: Arc::clone(&stop) });
    Ok(stop)
}

/// Whether Ctrl-C or SIGTERM has ended the command.
pub fn happened() -> bool {
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    asked.as_ref().is_some_and(|asked| asked.ended.load(Ordering::Relaxed))
}

/// The same for a command that only shows something: also set once its output has no reader.
pub fn on_signal_or_without_reader() -> io::Result<Arc<AtomicBool>> {
    let stop = on_signal()?;
    let gone = Arc::clone(&stop);
    when_gone(vec![Box::new(io::stdout())], move || gone.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

/// Ends the process once the other end of its output, or of any of `others`, is closed; for a
/// command that leaves nothing behind.
pub fn end_without_reader(others: Vec<Box<dyn AsFd + Send>>) -> io::Result<()> {
    let ends = std::iter::once(Box::new(io::stdout()) as Box<dyn AsFd + Send>).chain(others);
    when_gone(ends.collect(), || process::exit(0))
}

/// Whether our output has no reader: the reader of a pipe has ended, or a terminal was closed.
pub fn nobody_reads() -> bool {
    is_gone(&io::stdout())
}

/// Whether the other end of a pipe, a socket or a terminal is gone. A terminal that is gone
/// reports an end of file, as if the user had typed it.
pub fn is_gone(end: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(end, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok() && has_gone(&polled[0])
}

fn has_gone(polled: &PollFd<'_>) -> bool {
    polled.revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Runs `work` on a thread of its own once the other end of any of these is closed.
fn when_gone(ends: Vec<Box<dyn AsFd + Send>>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("delayline-ending".into()).spawn(move || {
        loop {
            // No event is asked for: a hang-up is always reported.
            let mut polled: Vec<_> = ends.iter().map(|end| PollFd::new(end, PollFlags::empty())).collect();
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if polled.iter().any(has_gone) => return work(),
                // These cannot be watched.
                _ => return,
            }
        }
    })?;
    Ok(())
}

/// Whether this process ignores a signal, as far as the system says.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, pipe},
        sync::mpsc,
    };

    use super::*;

    #[test]
    fn notices_a_reader_that_goes() {
        let (mut reader, writer) = pipe().unwrap();
        assert!(!is_gone(&writer) && !is_gone(&reader));
        let (said, heard) = mpsc::channel();
        let copy = writer.try_clone().unwrap();
        when_gone(vec![Box::new(fs::File::open("/dev/null").unwrap()), Box::new(copy)], move || {
            said.send(()).unwrap();
        })
        .unwrap();
        io::Write::write_all(&mut &writer, b"x").unwrap();
        reader.read_exact(&mut [0]).unwrap();
        assert!(heard.try_recv().is_err());
        drop(reader);
        heard.recv().unwrap();
        assert!(is_gone(&writer));
    }

    #[test]
    fn the_first_signal_is_the_first_however_often_it_was_asked_for() {
        let stops = [on_signal().unwrap(), on_signal().unwrap()];
        assert!(!happened());
        // This process would end if it counted as the second.
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert!(happened() && stops.iter().all(|stop| stop.load(Ordering::Relaxed)));
    }

    #[test]
    fn files_never_go() {
        assert!(!is_gone(&tempfile::tempfile().unwrap()));
    }
}
