//! Lines of a file or a pipe, one at a time, however long they are.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::{
    cmd::send::input::Format, cmd::send::input::Template, cmd::send::problem::Problem,
    cmd::send::problem::Problems,
};

/// The longest line that is read, in bytes. No broker accepts a larger message unless it is
/// configured to, and a line that never ends must be cut somewhere.
pub(crate) const LONGEST: usize = 128 << 20;

/// How many lines are read ahead.
const AHEAD: usize = 1_000;

/// How many bytes of them are held; reading then waits until some are taken.
const HELD: usize = 8 << 20;

/// A line without its line ending, as bytes: a body need not be UTF-8. Numbered from 1.
pub(crate) type Numbered = (u64, Result<Vec<u8>, Problem>);

/// Lines up to the end, or to the first read error. Holds at most `longest` bytes of a line.
pub(crate) fn lines(mut reader: impl BufRead, longest: usize) -> impl Iterator<Item = Numbered> {
    let mut failed = false;
    let lines = std::iter::from_fn(move || {
        if failed {
            // After a read error there would be only the same error again.
            return None;
        }
        let mut line = Vec::new();
        Some(match read(&mut reader, longest, &mut line).transpose()? {
            Ok(whole) => whole.map(|()| line),
            Err(error) => {
                failed = true;
                Err(error.to_string().into())
            }
        })
    });
    (1..).zip(lines)
}

/// Reads the next line, or skips a line that is too long; `None` at the end.
fn read(
    reader: &mut impl BufRead,
    longest: usize,
    line: &mut Vec<u8>,
) -> io::Result<Option<Result<(), Problem>>> {
    // With its ending: `\r\n` at most.
    let most = longest.saturating_add(2);
    if reader.by_ref().take(most as u64).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if line.len() == most {
        reader.skip_until(b'\n')?;
    }
    Ok(Some(if line.len() > longest { Err(too_long(longest)) } else { Ok(()) }))
}

fn too_long(longest: usize) -> Problem {
    format!("it is longer than {longest} bytes; send such a message alone, with --file").into()
}

/// Lines read on a thread of its own, which is never joined: a read may take forever.
pub(crate) struct Ahead {
    lines: Receiver<Numbered>,
    /// The bytes that are held between the two threads.
    held: Arc<AtomicUsize>,
}

impl Ahead {
    pub(crate) fn start(reader: impl BufRead + Send + 'static) -> Self {
        let (sender, lines_read) = crossbeam_channel::bounded(AHEAD);
        let held = Arc::new(AtomicUsize::new(0));
        let ahead = Self { lines: lines_read, held: Arc::clone(&held) };
        thread::spawn(move || {
            lines(reader, LONGEST).try_for_each(|line| {
                while held.load(Ordering::Relaxed) > HELD {
                    thread::sleep(Duration::from_millis(1));
                }
                held.fetch_add(size(&line), Ordering::Relaxed);
                sender.send(line)
            })
        });
        ahead
    }

    /// The next line, if it comes in time.
    pub(crate) fn next(&self, patience: Duration) -> Result<Numbered, RecvTimeoutError> {
        let line = self.lines.recv_timeout(patience)?;
        self.held.fetch_sub(size(&line), Ordering::Relaxed);
        Ok(line)
    }
}

fn size((_, line): &Numbered) -> usize {
    line.as_ref().map_or(0, Vec::len)
}

/// Checks everything without sending anything. Returns the number of messages, or everything
/// that is wrong.
pub(crate) fn check(reader: impl BufRead, format: Format, template: &Template) -> Result<u64, Problems> {
    let (mut messages, mut problems) = (0, Problems::default());
    for (number, line) in lines(reader, LONGEST) {
        match line.and_then(|line| format.message(&line, template)) {
            Ok(found) => messages += u64::from(found.is_some()),
            Err(problem) => problems.add(number, problem),
        }
    }
    if problems.count > 0 { Err(problems) } else { Ok(messages) }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, repeat};

    use super::*;

    #[test]
    fn lines_end_as_they_do_anywhere() {
        let text = b"one\r\n\xff\n\nlast";
        let lines: Vec<_> = lines(&text[..], 10).map(|(number, line)| (number, line.unwrap())).collect();
        let expected: [(u64, &[u8]); 4] = [(1, b"one"), (2, b"\xff"), (3, b""), (4, b"last")];
        assert_eq!(lines, expected.map(|(number, body)| (number, body.to_vec())));
    }

    #[test]
    fn a_line_without_an_end_is_not_held() {
        let endless = || BufReader::new(repeat(b'x').take(1 << 20));
        let mut held = Vec::new();
        assert_eq!(read(&mut endless(), 8, &mut held).unwrap(), Some(Err(too_long(8))));
        assert!(held.capacity() < 1_000, "{} bytes are held", held.capacity());
        let read: Vec<_> =
            lines(endless().chain(&b"\nshort\n12345678\r\n123456789\n1234567890\n"[..]), 8).collect();
        let short = |line: &[u8]| Ok(line.to_vec());
        let long = || Err(too_long(8));
        assert_eq!(
            read,
            [(1, long()), (2, short(b"short")), (3, short(b"12345678")), (4, long()), (5, long())]
        );
        // The last line may do without a newline, and be as long as any.
        let last =
            |text: &'static str| lines(text.as_bytes(), 3).map(|(_, line)| line.is_ok()).collect::<Vec<_>>();
        assert_eq!(
            (last("123"), last("1234"), last("12345"), last("123456")),
            (vec![true], vec![false], vec![false], vec![false])
        );
    }

    #[test]
    fn what_cannot_be_read_ends_it() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the disk is gone"))
            }
        }
        let read: Vec<_> = lines(b"one\n".chain(BufReader::new(Broken)), 8).collect();
        assert_eq!(read, [(1, Ok(b"one".to_vec())), (2, Err("the disk is gone".to_owned().into()))]);
    }

    #[test]
    fn every_bad_line_is_named_up_to_a_limit() {
        let template = Template::of("billing".parse().unwrap());
        let check = |text: &str| check(text.as_bytes(), Format::Json, &template);
        assert_eq!(check("{\"delay\": 1}\n\n{\"delay\": 2}").map_err(|problems| problems.count), Ok(2));
        let problems =
            check("{\"delay\": 1}\n{\"delay\": \"soon\"}\n\n{}\n{\"app\": \"a\\u001b b\"}\n").unwrap_err();
        let text = problems.to_string();
        let begin = |number: usize| text.lines().nth(number).unwrap_or_default();
        assert!(begin(0).starts_with("line 2, column 16: `soon` is not a delay"), "{text}");
        assert!(begin(1).starts_with("line 4: there is no delay"), "{text}");
        assert!(begin(2).starts_with("line 5, column 19: ") && !text.contains('\u{1b}'), "{text:?}");
        assert_eq!((problems.count, text.lines().count()), (3, 3));

        let many = check(&"{\"delay\": \"soon\"}\n".repeat(25)).unwrap_err();
        assert_eq!((many.count, many.shown.len()), (25, 20));
        assert_eq!(many.to_string().lines().last(), Some("… and 5 more"));
        // A line that is quoted can be long.
        let long = check(&format!("{{\"delay\": \"{}\"}}", "soon ".repeat(1_000))).unwrap_err().to_string();
        assert!(long.len() < 1_000 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn what_is_read_ahead_is_bounded_by_its_bytes_too() {
        // 40 lines of 1 MiB: the limit of 1,000 lines read ahead does not bound them.
        let text = [vec![b'x'; 1 << 20], vec![b'\n']].concat().repeat(40);
        let ahead = Ahead::start(io::Cursor::new(text));
        let patience = Duration::from_secs(60);
        let mut most = 0;
        for number in 1..=40 {
            // It is waited for until it has read what it may.
            while ahead.held.load(Ordering::Relaxed) <= HELD && ahead.lines.len() < 41 - number {
                thread::yield_now();
            }
            most = most.max(ahead.held.load(Ordering::Relaxed));
            assert_eq!(ahead.next(patience).unwrap().0, number as u64);
        }
        assert!((HELD..=HELD + (1 << 20)).contains(&most), "{most} bytes were held");
        assert!(matches!(ahead.next(patience), Err(RecvTimeoutError::Disconnected)));
    }
}
