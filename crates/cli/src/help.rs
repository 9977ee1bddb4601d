//! The output of `--help`: the own flags of each command, and the flags of all commands once.

use clap::{Args as _, Command};

use crate::flags::Global;
use delayline_term::{Code, Failure, Output};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 a problem was found, 2 wrong usage or an unreadable file, 3 the broker
cannot be reached or refuses, 130 interrupted (docs/reference/exit-codes.md).";

const SETTINGS: &str = "\
Settings come from delayline.toml in the working directory (or --config), from the
environment and from flags. Flags override the environment, which overrides the file. A
password comes from DELAYLINE_PASSWORD, from DELAYLINE_URL or from a file. There is no flag
for it: every user of the machine could read it.";

/// The names of the commands, as the help groups them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Set up", &["install", "verify", "uninstall", "apply", "diff", "export"]),
    ("Applications", &["app", "gateway"]),
    ("Messages", &["send", "schedule", "listen", "scheduled", "held"]),
    ("Operate", &["status", "doctor", "unstick", "serve", "transfer", "guard"]),
    ("Develop", &["dev", "demo", "key", "completions", "version"]),
];

/// The last line of each command's help.
const MORE: &str = "Connection, settings and output (--set, --url, --json, …): delayline help settings";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline help
  delayline help app add
  delayline help settings                       the flags that every command has")]
pub(crate) struct Args {
    /// The command, or `settings`
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

/// The help for a command or for the settings.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Text {
    /// The text.
    help: String,
}

pub(crate) fn run(args: &Args, mut root: Command, output: &mut Output) -> Result<Code, Failure> {
    let mut text = match args.words.as_slice() {
        [word] if word == "settings" => settings(),
        words => {
            root.build();
            find(&root, words)?.clone().render_long_help()
        }
    }
    .to_string();
    text.truncate(text.trim_end().len());
    match output.json {
        true => output.json(&Text { help: text })?,
        false => output.line(text)?,
    }
    Ok(Code::Done)
}

/// The command of these words.
pub(crate) fn find<'a>(root: &'a Command, words: &[String]) -> Result<&'a Command, Failure> {
    words.iter().try_fold(root, |command, name| {
        command.find_subcommand(name).ok_or_else(|| {
            let above = command.get_bin_name().unwrap_or(command.get_name());
            let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
            Failure::usage(match names.is_empty() {
                true => format!("`{above}` has no commands of its own, such as `{name}`"),
                false => format!("`{above}` has no command `{name}`; it has {}", names.join(", ")),
            })
        })
    })
}

/// The flags that every command has.
fn settings() -> clap::builder::StyledStr {
    let flags = Global::augment_args(Command::new("delayline"))
        .bin_name("delayline COMMAND")
        .disable_help_flag(true)
        .mut_args(|arg| match arg.get_id().as_str() {
            "unit_ms" => arg,
            _ => arg.hide(false),
        });
    let variables = delayline_settings::variables().join(", ");
    flags
        .after_help(format!(
            "{SETTINGS}\n\nEnvironment variables: DELAYLINE_CONFIG, DELAYLINE_LOG, DELAYLINE_POLICIES, {variables}\
             \n\n{EXIT_CODES}"
        ))
        .render_help()
}

/// Puts the examples of each command into its short help, and all that follows them into its long
/// one.
pub(crate) fn brief(command: Command) -> Command {
    let command = command.mut_subcommands(brief);
    let Some(all) = command.get_after_help().map(ToString::to_string) else { return command };
    let examples = all.split("\n\n").next().unwrap_or_default();
    let short = format!("{examples}\n\n{MORE}");
    command.after_help(short).after_long_help(format!("{all}\n\n{MORE}"))
}

/// With the tree of all commands as its help.
pub(crate) fn with_tree(command: Command) -> Command {
    let tree = tree(&command);
    command.help_template(format!(
        "{{about-with-newline}}{{usage-heading}} delayline COMMAND\n\n{tree}Help for a command: delayline \
         help COMMAND\n{MORE}\n"
    ))
}

/// Every command on a line of its own.
fn tree(root: &Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        text += &format!("{group}:\n");
        for command in names.iter().filter_map(|name| root.find_subcommand(name)) {
            let mut line = |words: &str, about: &Command| {
                let about = about.get_about().map(ToString::to_string).unwrap_or_default();
                text += &format!("  {words:<22} {about}\n");
            };
            let alone = !command.is_subcommand_required_set();
            if alone {
                line(command.get_name(), command);
            }
            for nested in command.get_subcommands() {
                line(&format!("{} {}", command.get_name(), nested.get_name()), nested);
            }
        }
    }
    text
}
