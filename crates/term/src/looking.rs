//! Work during which a signal comes.

use std::{
    io, process,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use indicatif::ProgressBar;

use crate::{code::Code, ending::happened, ending::on_signal, failure::Failure};

/// How often to check whether a signal has ended a command that looks at something, and how long
/// the command may then take to end.
const TICK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);

/// While a command looks at something. That leaves nothing behind, so that it need not wait for
/// a broker that gives no answer: after a signal it has some seconds to end in order.
#[derive(Debug)]
pub struct Looking {
    /// As of [`on_signal`].
    pub stop: Arc<AtomicBool>,
    /// Dropped when it has looked.
    _until: Sender<()>,
}

impl Looking {
    /// Until this is dropped, a signal ends the process soon. `bar` is cleared then.
    pub fn begin(json: bool, bar: Option<ProgressBar>) -> io::Result<Self> {
        let stop = on_signal()?;
        let (until, ended) = mpsc::channel();
        thread::Builder::new().name("delayline-looking".into()).spawn(move || {
            let waits = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            while waits(TICK) {
                if happened() && waits(PATIENCE) {
                    bar.iter().for_each(ProgressBar::finish_and_clear);
                    let failure =
                        Failure::new(Code::Interrupted, "interrupted; the broker has not answered yet");
                    failure.say(json);
                    process::exit(Code::Interrupted.number().into());
                }
            }
        })?;
        Ok(Self { stop, _until: until })
    }
}
