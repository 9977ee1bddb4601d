//! Where retry policies come from.

use std::path::{Path, PathBuf};

use delayline_core::retry::Policies;

use crate::Failure;

/// The file that is read if it exists and no other file is named.
const DEFAULT_FILE: &str = "delayline-policies.toml";

/// The flag that names the file.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Source {
    /// File with the retry policies [default: delayline-policies.toml in the working directory if
    /// it exists] [env: DELAYLINE_POLICIES]
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
}

impl Source {
    /// The file there is to read, if any.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.policies
            .clone()
            .or_else(|| std::env::var_os("DELAYLINE_POLICIES").map(PathBuf::from))
            .or_else(|| Path::new(DEFAULT_FILE).exists().then(|| DEFAULT_FILE.into()))
    }

    /// The policies of the file, or the built-in ones without a file.
    pub(super) fn load(&self) -> Result<Policies, Failure> {
        match self.file() {
            Some(file) => delayline_settings::load_policies(&file).map_err(Failure::usage),
            None => Ok(Policies::default()),
        }
    }
}
