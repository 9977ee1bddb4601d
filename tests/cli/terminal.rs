//! A terminal with a command in it.

use std::{
    io::{Read, Write},
    sync::{Arc, Mutex},
    thread,
};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::common::{eventually, eventually_seen};

/// A command in a terminal; dropping it ends the command.
pub(crate) struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    before: String,
}

impl Terminal {
    /// Starts the command without the settings of the user who runs the tests.
    pub(crate) fn start(mut command: CommandBuilder, (rows, cols): (u16, u16)) -> Self {
        let size = PtySize { rows, cols, ..PtySize::default() };
        let pty = native_pty_system().openpty(size).unwrap();
        let before = format!("{:?}", pty.master.get_termios());
        for (name, value) in std::env::vars() {
            // Variables that the test set are kept.
            if name.starts_with("DELAYLINE_") && command.get_env(&name) == Some(value.as_ref()) {
                command.env_remove(name);
            }
        }
        command.env("TERM", "xterm-256color");
        command.cwd(std::env::temp_dir());
        let child = pty.slave.spawn_command(command).unwrap();
        let screen =
            Arc::new(Mutex::new(vt100::Parser::new(rows.try_into().unwrap(), cols.try_into().unwrap(), 0)));
        let mut reader = pty.master.try_clone_reader().unwrap();
        let drawn = Arc::clone(&screen);
        thread::spawn(move || {
            let mut part = [0; 4_096];
            // If the other end of a terminal is closed, reading returns an error instead of the end
            // of the file.
            while let Ok(length @ 1..) = reader.read(&mut part) {
                drawn.lock().unwrap().process(&part[..length]);
            }
        });
        let keys = pty.master.take_writer().unwrap();
        Self { child, master: pty.master, keys, screen, before }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    pub(crate) fn shows(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub(crate) fn eventually_shows(&self, text: &str) -> String {
        eventually_seen(text, || self.shows(), |screen| screen.contains(text))
    }

    pub(crate) fn press(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).unwrap();
    }

    /// Waits until the command has ended successfully and the terminal is as before.
    pub(crate) fn leaves_it_clean(mut self) {
        let mut ended = None;
        eventually("the command ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()));
        let state = || {
            let parser = self.screen.lock().unwrap();
            (parser.screen().alternate_screen(), parser.screen().hide_cursor())
        };
        eventually_seen("the screen is clean", state, |state| *state == (false, false));
        assert_eq!(format!("{:?}", self.master.get_termios()), self.before);
        assert_eq!(self.shows().trim(), "");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
