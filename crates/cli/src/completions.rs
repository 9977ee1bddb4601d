//! `delayline completions`

use clap::ValueEnum;
use clap_complete::{
    Generator, aot,
    env::{self, EnvCompleter},
};
use clap_complete_nushell::Nushell;

use crate::{Code, Failure, Output, args, complete};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline completions bash | sudo tee /etc/bash_completion.d/delayline
  delayline completions zsh > ~/.zfunc/_delayline
  delayline completions fish > ~/.config/fish/completions/delayline.fish
  delayline completions nushell > delayline.nu
  delayline completions powershell >> $PROFILE

The packages for Debian and Red Hat install those for bash, zsh and fish. In these three
shells, names are completed, too: applications, gateways and sets on the broker, brokers in
the settings file. The broker is asked for one second at most, with the settings in force
and the flags typed so far; if it does not answer, there are no names.")]
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
            Self::Bash => asking(&env::Bash),
            Self::Zsh => format!("{}{AUTOLOADED}", asking(&env::Zsh)),
            Self::Fish => asking(&env::Fish),
            Self::Nushell => script(Nushell),
            Self::Pwsh => script(aot::PowerShell),
        }
    }
}

/// Put into a folder of `fpath`, the script for zsh is itself the function that is called.
const AUTOLOADED: &str = "\
if [ \"$funcstack[1]\" = _delayline ]; then
    _clap_dynamic_completer_delayline \"$@\"
fi
";

/// A script that asks the command each time, which knows names, too.
fn asking(shell: &impl EnvCompleter) -> String {
    let mut script = Vec::new();
    let name = "delayline";
    // Writing to memory does not fail.
    let _ = shell.write_registration(complete::VARIABLE, name, name, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A script that has all commands and flags in it.
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
    fn every_shell_learns_commands_and_flags_or_asks() {
        for shell in Shell::value_variants() {
            let script = shell.script();
            let words: &[&str] = match shell {
                Shell::Bash | Shell::Zsh | Shell::Fish => &[complete::VARIABLE, "delayline --"],
                Shell::Nushell | Shell::Pwsh => &["unroutable", "replay", "management-url"],
            };
            for word in words {
                let script = script.replace('"', "");
                assert!(script.contains(word), "{shell:?} does not know {word}: {script}");
            }
        }
    }
}
