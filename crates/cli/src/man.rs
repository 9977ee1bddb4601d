//! `delayline man`

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Command;
use clap_mangen::Man;

use crate::{Code, Failure, Output, args, output::counted};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline man | man -l -
  delayline man app add | man -l -
  delayline man --into /usr/local/share/man/man1")]
pub(super) struct Args {
    /// The command whose page to print [default: delayline itself]
    #[arg(value_name = "COMMAND", conflicts_with = "into")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory, which must exist
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let mut root = args::command().disable_help_subcommand(true);
    // This gives each command the flags that all of them share, and its full name.
    root.build();
    if let Some(directory) = &args.into {
        let files = write_all(&root, directory)
            .map_err(|error| Failure::usage(format!("{}: {error}", directory.display())))?;
        if output.json {
            output.json(&serde_json::json!({ "files": files }))?;
        } else {
            output.line(format!("{} written", counted(files.len() as u64, "page")))?;
        }
        return Ok(Code::Done);
    }
    let mut command = &root;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let above = command.get_bin_name().unwrap_or(command.get_name());
            let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
            Failure::usage(match names.is_empty() {
                true => format!("`{above}` has no commands of its own, such as `{name}`"),
                false => format!("`{above}` has no command `{name}`; it has {}", names.join(", ")),
            })
        })?;
    }
    let page = page(command)?;
    if output.json {
        output.json(&serde_json::json!({ "page": page }))?;
    } else {
        output.line(page.trim_end())?;
    }
    Ok(Code::Done)
}

fn page(command: &Command) -> io::Result<String> {
    let mut page = Vec::new();
    let version = concat!("delayline ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(version).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Writes the pages of a command and of all under it, and returns the names of the files.
fn write_all(command: &Command, directory: &Path) -> io::Result<Vec<String>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut files = vec![format!("{name}.1")];
    fs::write(directory.join(&files[0]), page(command)?)?;
    for nested in command.get_subcommands() {
        files.extend(write_all(nested, directory)?);
    }
    Ok(files)
}
