//! Flags that several commands have: the connection, the settings, the output, and the file with
//! retry policies.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use delayline_core::{retry::Policies, shell, topology::SetName};
use delayline_settings::{Layers, Settings};

use delayline_term::{Code, Failure, Output, logging, output::Shape};

/// Flags that every command has: the connection, the settings and the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Broker and settings")]
pub struct Global {
    /// Read settings from this file instead of delayline.toml [env: DELAYLINE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The broker of this name in the settings file ([brokers.NAME])
    #[arg(long, global = true, value_name = "NAME")]
    broker: Option<String>,
    /// AMQP URL without a password: amqp://USER@HOST:PORT/VHOST, or amqps://
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// URL of the management API, or `none` [default: the same host, port
    /// 15672 or 15671, if AMQP uses a default port]
    #[arg(long, global = true, value_name = "URL")]
    management_url: Option<String>,
    /// Name of the set [default: delay]
    #[arg(long, global = true, value_name = "NAME")]
    set: Option<String>,
    /// User to log in as [default: the URL's, or guest]
    #[arg(long, global = true, value_name = "NAME")]
    username: Option<String>,
    /// File that holds the password
    #[arg(long, global = true, value_name = "FILE")]
    password_file: Option<String>,
    /// File that holds the password of the application's user, for `delayline app`
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    app_password_file: Option<String>,
    /// PEM file of the certificate authorities to trust [default: the system's]
    #[arg(long, global = true, value_name = "FILE")]
    ca_file: Option<String>,
    /// PEM file of a client certificate
    #[arg(long, global = true, value_name = "FILE", requires = "client_key_file")]
    client_cert_file: Option<String>,
    /// PEM file of the client certificate's key
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert_file")]
    client_key_file: Option<String>,
    /// Queue type of the set, `quorum` or `classic` [default: quorum]
    #[arg(long, global = true, value_name = "TYPE")]
    queue_type: Option<String>,
    /// Replicas of each quorum queue [default: the broker's]
    #[arg(long, global = true, value_name = "N")]
    replicas: Option<String>,
    /// Let messages take shortcuts in this set, or not with `--shortcuts false` [default: as installed]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    shortcuts: Option<String>,
    /// Length of a unit of delay in ms, for tests [default: 1000]
    #[arg(long, global = true, value_name = "MS", hide = true)]
    unit_ms: Option<String>,
    /// Print JSON for scripts (docs/reference/json.md)
    #[arg(long, global = true, help_heading = "Output", conflicts_with = "output")]
    json: bool,
    /// How to print
    #[arg(short, long, global = true, value_name = "FORMAT", help_heading = "Output")]
    output: Option<Shape>,
    /// Show every detail
    #[arg(long, global = true, help_heading = "Output")]
    details: bool,
    /// Log more; twice for still more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    verbose: u8,
}

impl Global {
    /// Runs the command of these words, and prints why if it fails. `louder` raises the level of
    /// the log; `looks` is whether the command only reports how things are.
    pub fn run(
        &self,
        command: &[&str],
        louder: u8,
        looks: bool,
        work: impl FnOnce(&mut Output) -> Result<Code, Failure>,
    ) -> ExitCode {
        logging::start(self.verbose.saturating_add(louder));
        let mut output = Output::new(self.shape(), self.details, command);
        work(&mut output).unwrap_or_else(|failure| failure.report(output.json, looks)).into()
    }

    /// How to print what was found.
    fn shape(&self) -> Shape {
        match self.json {
            true => Shape::Json,
            false => self.output.unwrap_or(Shape::Table),
        }
    }

    /// Whether the flags ask for shortcuts.
    #[must_use]
    pub fn shortcuts(&self) -> bool {
        self.shortcuts.as_deref() == Some("true")
    }

    /// The flags for a set on a private broker.
    pub(crate) fn set_and_unit(&self) -> (Option<&str>, Option<&str>) {
        (self.set.as_deref(), self.unit_ms.as_deref())
    }

    /// The settings of this process, from all layers.
    ///
    /// # Errors
    /// A setting that is wrong, or a file that cannot be read.
    pub fn settings(&self) -> Result<Settings, Failure> {
        for (flag, url) in [("--url", &self.url), ("--management-url", &self.management_url)] {
            if url.as_deref().is_some_and(has_password) {
                return Err(Failure::usage(format!(
                    "{flag} contains a password, which every user of this machine can read in the process \
                     list; omit it, and use DELAYLINE_PASSWORD or a file (--password-file)"
                )));
            }
        }
        let settings = self.layers().build()?;
        self.repeat(&settings);
        settings.check_files()?;
        Ok(settings)
    }

    /// The flags that are settings.
    fn typed(&self) -> [(&'static str, &Option<String>); 14] {
        [
            ("broker", &self.broker),
            ("url", &self.url),
            ("management_url", &self.management_url),
            ("set", &self.set),
            ("username", &self.username),
            ("password_file", &self.password_file),
            ("app_password_file", &self.app_password_file),
            ("ca_file", &self.ca_file),
            ("client_cert_file", &self.client_cert_file),
            ("client_key_file", &self.client_key_file),
            ("queue_type", &self.queue_type),
            ("replicas", &self.replicas),
            ("shortcuts", &self.shortcuts),
            ("unit_ms", &self.unit_ms),
        ]
    }

    /// Lets printed commands repeat the flags with which the broker and the set were found.
    fn repeat(&self, settings: &Settings) {
        let config = self.config.iter().map(|file| ("config", file.to_string_lossy().into_owned()));
        let typed = self.typed().into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
        // A set may be named elsewhere, but what a daemon prints is pasted on another machine.
        let set = &settings.topology.set;
        let set = (self.set.is_none() && *set != SetName::default()).then(|| ("set", set.to_string()));
        let flag = |(key, value): (&str, String)| [format!("--{}", key.replace('_', "-")), value];
        shell::repeat(config.chain(typed).chain(set).map(flag).collect());
    }

    /// The file, the environment and the flags, before they are read.
    pub(crate) fn layers(&self) -> Layers {
        let mut layers = Layers::new().with_file(self.config.as_deref()).with_environment(
            // Names and values that are not UTF-8 are not our settings.
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        );
        for (key, value) in self.typed() {
            if let Some(value) = value {
                layers = layers.set(key, value);
            }
        }
        layers
    }
}

fn has_password(url: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| url.password().is_some())
}

/// The file that is read if it exists and no other file is named.
const DEFAULT_FILE: &str = "delayline-policies.toml";

/// The flag that names the file.
#[derive(Debug, Default, Args)]
pub(crate) struct PolicyFile {
    /// File with the retry policies [default: delayline-policies.toml in the working directory if
    /// it exists] [env: DELAYLINE_POLICIES]
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
}

impl PolicyFile {
    /// The file there is to read, if any.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.policies
            .clone()
            .or_else(|| std::env::var_os("DELAYLINE_POLICIES").map(PathBuf::from))
            .or_else(|| Path::new(DEFAULT_FILE).exists().then(|| DEFAULT_FILE.into()))
    }

    /// The policies of the file, or the built-in ones without a file.
    pub(crate) fn load(&self) -> Result<Policies, Failure> {
        match self.file() {
            Some(file) => delayline_settings::load_policies(&file).map_err(Failure::usage),
            None => Ok(Policies::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_a_password_in_a_url() {
        assert!(has_password("amqp://u:p@h"));
        for url in ["amqp://u@h", "amqp://h", "none", "http://h:15672"] {
            assert!(!has_password(url), "{url}");
        }
    }
}
