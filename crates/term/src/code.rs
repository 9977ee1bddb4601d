//! Exit codes. docs/reference/exit-codes.md lists those of each command, and why.

use std::process::ExitCode;

/// What the exit code means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// 0: done.
    Done,
    /// 1: looked, and found a problem.
    Problem,
    /// 2: wrong usage.
    Usage,
    /// 3: the broker cannot be reached or refuses.
    Broker,
    /// 130: interrupted, as shells count it.
    Interrupted,
    /// That of another program which was run.
    Other(u8),
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

impl Code {
    /// The code of two consecutive steps: the more severe code.
    pub fn or(self, other: Self) -> Self {
        if other.number() > self.number() { other } else { self }
    }

    /// The number of the process's exit code.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Problem => 1,
            Self::Usage => 2,
            Self::Broker => 3,
            Self::Interrupted => 130,
            Self::Other(number) => number,
        }
    }
}
