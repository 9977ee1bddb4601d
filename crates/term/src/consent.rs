//! Asking before something is destroyed.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::{code::Code, failure::Failure, output::Output};

/// The flags of commands that destroy messages or rights.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Consent {
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
}

impl Consent {
    /// Shows the changes on a terminal, and asks. Returns the exit code if they are not to be made.
    /// `plan` shows the changes, and returns the exit code of a dry run.
    ///
    /// # Errors
    /// There is no terminal to ask on, and no `--yes`.
    pub fn ask(
        self,
        output: &mut Output,
        plan: impl FnOnce(&mut Output) -> Result<Code, Failure>,
    ) -> Result<Option<Code>, Failure> {
        if self.dry_run {
            return plan(output).map(Some);
        }
        if self.yes {
            return Ok(None);
        }
        if output.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::usage(
                "this command is destructive, and there is no terminal to ask on; check it with --dry-run, \
                 then run it with --yes",
            ));
        }
        match plan(output)? {
            Code::Done => {}
            code => return Ok(Some(code)),
        }
        let mut stderr = io::stderr().lock();
        write!(stderr, "Do it? [y/N] ").and_then(|()| stderr.flush())?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(None),
            _ => {
                output.line("nothing was changed")?;
                Ok(Some(Code::Interrupted))
            }
        }
    }
}
