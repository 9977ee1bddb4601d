//! `delayline completions`

use clap::ValueEnum;
use clap_complete::{Generator, aot};
use clap_complete_nushell::Nushell;

use crate::{Code, Failure, Output, args};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline completions bash | sudo tee /etc/bash_completion.d/delayline
  delayline completions zsh > ~/.zfunc/_delayline
  delayline completions fish > ~/.config/fish/completions/delayline.fish
  delayline completions nushell > delayline.nu
  delayline completions powershell >> $PROFILE

The packages for Debian and Red Hat install those for bash, zsh and fish.")]
pub(super) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
    Nushell,
    #[value(name = "powershell")]
    Pwsh,
}

impl Shell {
    /// What makes its shell complete our commands, flags and values.
    fn script(self) -> String {
        match self {
            Self::Bash => script(aot::Bash),
            Self::Zsh => script(aot::Zsh),
            Self::Fish => script(aot::Fish),
            Self::Nushell => script(Nushell),
            Self::Pwsh => script(aot::PowerShell),
        }
    }
}

fn script(shell: impl Generator) -> String {
    let mut command = args::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    aot::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let script = args.shell.script();
    if output.json {
        output.json(&serde_json::json!({ "script": script }))?;
    } else {
        output.line(script.trim_end())?;
    }
    Ok(Code::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_learns_commands_and_flags() {
        for shell in Shell::value_variants() {
            let script = shell.script();
            for word in ["unroutable", "replay", "management-url"] {
                assert!(script.contains(word), "{shell:?} does not know {word}");
            }
        }
    }
}
