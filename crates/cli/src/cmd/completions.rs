//! `delayline completions`

use clap::ValueEnum;
use clap_complete::env::{self, EnvCompleter};

use delayline_term::{Code, Failure, Output};

/// The variable with which a shell asks; its value is the shell's name. It is none of our
/// settings, whose names begin with `DELAYLINE_`.
pub(crate) const VARIABLE: &str = "_DELAYLINE_COMPLETE";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline completions bash | sudo tee /etc/bash_completion.d/delayline
  delayline completions zsh > ~/.zfunc/_delayline
  delayline completions fish > ~/.config/fish/completions/delayline.fish

The packages for Debian and Red Hat install them. Names are completed, too: applications,
gateways and sets on the broker, brokers in the settings file. The broker is asked with the
current settings and the flags typed so far. If it does not answer within one second, no
names are offered.")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// The code with which a shell completes our commands, flags and values.
    fn script(self) -> String {
        match self {
            Self::Bash => asking(&env::Bash),
            Self::Zsh => format!("{}{AUTOLOADED}", asking(&env::Zsh)),
            Self::Fish => asking(&env::Fish),
        }
    }
}

/// Put into a folder of `fpath`, the script for zsh is itself the function that is called.
const AUTOLOADED: &str = "\
if [ \"$funcstack[1]\" = _delayline ]; then
    _clap_dynamic_completer_delayline \"$@\"
fi
";

/// A script that asks the command each time, and so completes names, too.
fn asking(shell: &impl EnvCompleter) -> String {
    let mut script = Vec::new();
    let name = "delayline";
    // Writing to memory does not fail.
    let _ = shell.write_registration(VARIABLE, name, name, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Script {
    /// The script for the shell.
    script: String,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let script = args.shell.script();
    if output.json {
        output.json(&Script { script })?;
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
            for word in [VARIABLE, "delayline --"] {
                let script = script.replace('"', "");
                assert!(script.contains(word), "{shell:?} does not know {word}: {script}");
            }
        }
    }
}
