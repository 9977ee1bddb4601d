//! `delayline man`

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Command;
use clap_mangen::Man;

use crate::help;
use delayline_term::{Code, Failure, Output, output::counted};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline man | man -l -
  delayline man app add | man -l -
  delayline man --into /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// The command whose page to print [default: delayline itself]
    #[arg(value_name = "COMMAND", conflicts_with = "into")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory, which must exist
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Page {
    /// The manual page, in roff.
    page: String,
}

/// With `--into`.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Pages {
    /// The files that were written.
    files: Vec<String>,
}

pub(crate) fn run(args: &Args, mut root: Command, output: &mut Output) -> Result<Code, Failure> {
    // This gives each command the flags that all of them share, and its full name.
    root.build();
    if let Some(directory) = &args.into {
        let files = write_all(&root, directory)
            .map_err(|error| Failure::usage(format!("{}: {error}", directory.display())))?;
        if output.json {
            output.json(&Pages { files })?;
        } else {
            output.line(format!("{} written", counted(files.len() as u64, "page")))?;
        }
        return Ok(Code::Done);
    }
    let page = page(help::find(&root, &args.command)?)?;
    if output.json {
        output.json(&Page { page })?;
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
