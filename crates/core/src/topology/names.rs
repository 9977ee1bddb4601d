//! The names of a set's exchanges and queues.

use std::{fmt, str::FromStr};

use crate::{
    codec::{AppKey, AppKeyError, Hop, Level, Shortcut},
    shell::{command, with_flags},
};

use super::Endpoint;

/// The advice if an object of a set is missing. The caller may not know the set's name.
#[must_use]
pub fn if_missing() -> String {
    let install = command(&["install"]);
    let other = if install.contains(" --set ") { "" } else { " (with --set for a set of another name)" };
    format!("is the set installed? Run `{install}`{other}")
}

/// The name of an installed set: one word of letters, digits, `-` and `_`,
/// 64 characters at most. The default is `delay`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetName(String);

/// Why a text is not a [`SetName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` cannot be the name of a set; use one word of 1 to 64 ASCII letters, digits, `-` and `_`, not \
     beginning with `amq`", name.escape_debug()
)]
#[non_exhaustive]
pub struct SetNameError {
    /// The given name.
    pub name: String,
}

impl SetName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A command of `delayline` for this set, as a user must type it.
    ///
    /// ```
    /// use delayline_core::topology::SetName;
    ///
    /// assert_eq!(SetName::default().command(&["install"]), "delayline install");
    /// let later: SetName = "later".parse()?;
    /// assert_eq!(later.command(&["app", "add", "a b"]), "delayline app add 'a b' --set later");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn command(&self, words: &[&str]) -> String {
        match *self == Self::default() {
            true => with_flags(words, &[]),
            false => with_flags(words, &[["--set", self.as_str()]]),
        }
    }
}

impl Default for SetName {
    fn default() -> Self {
        Self("delay".into())
    }
}

impl FromStr for SetName {
    type Err = SetNameError;

    fn from_str(name: &str) -> Result<Self, SetNameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        // Brokers reserve `amq.` for their own objects; `amq-x` would be legal, but looks
        // like one of them.
        let fits = (1..=64).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with("amq");
        fits.then(|| Self(name.into())).ok_or_else(|| SetNameError { name: name.into() })
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names of the objects of one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    set: SetName,
}

impl Names {
    /// The names for a set.
    #[must_use]
    pub fn new(set: SetName) -> Self {
        Self { set }
    }

    /// The only exchange that applications publish to. It belongs to the top level.
    #[must_use]
    pub fn entry(&self) -> String {
        self.set.to_string()
    }

    /// The exchange in front of a level.
    #[must_use]
    pub fn level_exchange(&self, level: Level) -> String {
        if level == Level::TOP { self.entry() } else { self.level_queue(level) }
    }

    /// The queue of a level.
    #[must_use]
    pub fn level_queue(&self, level: Level) -> String {
        format!("{}.level.{level:02}", self.set)
    }

    /// The queue of a shortcut: its level, and the bits that a message waits for in it.
    #[must_use]
    pub fn shortcut(&self, shortcut: Shortcut) -> String {
        format!("{}.{}", self.level_queue(shortcut.level()), shortcut.bits())
    }

    /// The queue of a level or of a shortcut.
    #[must_use]
    pub fn hop(&self, hop: Hop) -> String {
        match hop {
            Hop::Level(level) => self.level_queue(level),
            Hop::Shortcut(shortcut) => self.shortcut(shortcut),
        }
    }

    /// The level or shortcut whose queue has this name.
    #[must_use]
    pub fn hop_of(&self, queue: &str) -> Option<Hop> {
        queue.strip_prefix(self.set.as_str())?.strip_prefix(".level.")?;
        Hop::all().find(|hop| self.hop(*hop) == queue)
    }

    /// The exchange that applications bind to.
    #[must_use]
    pub fn dispatch(&self) -> String {
        format!("{}.dispatch", self.set)
    }

    /// The exchange and the queue for unroutable messages.
    #[must_use]
    pub fn unroutable(&self) -> String {
        format!("{}.unroutable", self.set)
    }

    /// The exchange that applications dead-letter to with their app key, and the queue of messages
    /// that no retry service has taken yet.
    #[must_use]
    pub fn retry(&self) -> String {
        format!("{}.retry", self.set)
    }

    /// The landing queue of an application, between dispatch and the application.
    #[must_use]
    pub fn landing(&self, app: &AppKey) -> String {
        format!("{}{app}", self.landing_prefix())
    }

    /// The application whose landing queue, or queue while it is paused, has this name.
    #[must_use]
    pub fn app_of_landing<'a>(&self, queue: &'a str) -> Option<&'a str> {
        queue.strip_prefix(&self.landing_prefix()).or_else(|| self.app_of_paused(queue))
    }

    /// The queue in which the messages of an application wait while it is paused.
    #[must_use]
    pub fn paused(&self, app: &AppKey) -> String {
        format!("{}{app}", self.paused_prefix())
    }

    /// The paused application whose messages wait in a queue of this name.
    #[must_use]
    pub fn app_of_paused<'a>(&self, queue: &'a str) -> Option<&'a str> {
        queue.strip_prefix(&self.paused_prefix())
    }

    fn paused_prefix(&self) -> String {
        format!("{}.paused.", self.set)
    }

    /// The exchange through which the messages of an application pass while they are moved to another
    /// queue, and the exchange behind it that leads to the present queue.
    #[must_use]
    pub fn moving(&self, app: &AppKey) -> [String; 2] {
        [format!("{}.moving.{app}", self.set), format!("{}.moving-from.{app}", self.set)]
    }

    /// The application that has an exchange of this name while its messages are moved.
    #[must_use]
    pub fn app_of_moving<'a>(&self, exchange: &'a str) -> Option<&'a str> {
        let rest = exchange.strip_prefix(self.set.as_str())?;
        rest.strip_prefix(".moving.").or_else(|| rest.strip_prefix(".moving-from."))
    }

    fn landing_prefix(&self) -> String {
        format!("{}.landing.", self.set)
    }

    /// Whether a message passes a queue of this name on its way to an application: a level, a
    /// landing queue, or a queue of a gateway.
    #[must_use]
    pub fn is_on_the_way(&self, queue: &str) -> bool {
        let rest = queue.strip_prefix(self.set.as_str());
        rest.is_some_and(|rest| rest.starts_with(".level."))
            || self.app_of_landing(queue).is_some()
            || self.gateway_of(queue).is_some()
    }

    /// Whether messages of the set are published to an exchange of this name, or reach an
    /// application from it.
    #[must_use]
    pub fn carries(&self, exchange: &str) -> bool {
        let rest = exchange.strip_prefix(self.set.as_str());
        rest.is_some_and(|rest| ["", ".dispatch"].contains(&rest) || rest.starts_with(".level."))
    }

    /// The exchange whose bindings are the recalls of an application.
    #[must_use]
    pub fn recall(&self, app: &AppKey) -> String {
        format!("{}.recall.{app}", self.set)
    }

    /// The exchange through which messages that were not recalled reach their application.
    ///
    /// Its name must sort after that of [`recall`](Self::recall) and before that of
    /// [`unroutable`](Self::unroutable). When a node starts, RabbitMQ up to 4.0 (and later without
    /// Khepri) restores its bindings in the order of their exchanges' names:
    /// `rabbit_binding:recover/2` reads an ordered table. The node's levels already deliver at that
    /// time. In any other order, recalled messages would be delivered before the recalls are
    /// restored.
    #[must_use]
    pub fn through(&self, app: &AppKey) -> String {
        format!("{}.through.{app}", self.set)
    }

    /// The queue of an application's recalled messages.
    #[must_use]
    pub fn recalled(&self, app: &AppKey) -> String {
        format!("{}{app}", self.recalled_prefix())
    }

    /// The application whose recalled messages this queue keeps.
    #[must_use]
    pub fn app_of_recalled<'a>(&self, queue: &'a str) -> Option<&'a str> {
        queue.strip_prefix(&self.recalled_prefix())
    }

    /// The application whose exchange for recalling, or for passing on, has this name.
    #[must_use]
    pub fn app_of_recall<'a>(&self, exchange: &'a str) -> Option<&'a str> {
        let rest = exchange.strip_prefix(self.set.as_str())?;
        rest.strip_prefix(".recall.").or_else(|| rest.strip_prefix(".through."))
    }

    /// The stream with a copy of each message of an application that was published for it.
    #[must_use]
    pub fn journal(&self, app: &AppKey) -> String {
        format!("{}{app}", self.journal_prefix())
    }

    /// The application whose journal this queue is.
    #[must_use]
    pub fn app_of_journal<'a>(&self, queue: &'a str) -> Option<&'a str> {
        queue.strip_prefix(&self.journal_prefix())
    }

    fn journal_prefix(&self) -> String {
        format!("{}.journal.", self.set)
    }

    fn recalled_prefix(&self) -> String {
        format!("{}.recalled.", self.set)
    }

    /// The exchange and the queue for messages that have used up their attempts or their
    /// time.
    #[must_use]
    pub fn parked(&self) -> String {
        format!("{}.parked", self.set)
    }

    /// The exchange for the definitions of recurring schedules, and the stream that keeps them. Both are
    /// made with the first schedule.
    #[must_use]
    pub fn schedules(&self) -> String {
        format!("{}.schedules", self.set)
    }

    /// The queue that decides which daemon publishes for schedules: its single active consumer.
    #[must_use]
    pub fn schedules_turn(&self) -> String {
        format!("{}.turn", self.schedules())
    }

    /// The exchange for the definitions of the schedules that an application manages itself, and the stream
    /// that keeps them.
    #[must_use]
    pub fn schedules_of(&self, app: &AppKey) -> String {
        format!("{}{app}", self.schedules_of_prefix())
    }

    /// The application that has this exchange or stream for its schedules.
    #[must_use]
    pub fn app_of_schedules<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&self.schedules_of_prefix())
    }

    /// The beginning of [`schedules_of`](Self::schedules_of) for every application.
    #[must_use]
    pub fn schedules_of_prefix(&self) -> String {
        format!("{}.schedules-of.", self.set)
    }

    /// The app key under which the messages of a gateway return from the levels.
    ///
    /// # Errors
    /// The name of the gateway cannot be part of an app key, or is longer than 142 bytes.
    pub fn gateway_app(gateway: &str) -> Result<AppKey, AppKeyError> {
        AppKey::new(format!("gateway.{gateway}"))
    }

    /// The gateway whose messages return from the levels under this app key.
    #[must_use]
    pub fn gateway_of_app(app: &str) -> Option<&str> {
        app.strip_prefix("gateway.")
    }

    /// The exchange that the publishers of a gateway use.
    #[must_use]
    pub fn gateway_entry(gateway: &str) -> String {
        format!("{gateway}.in")
    }

    /// The queue of messages that arrived at a gateway and that no daemon has taken yet.
    #[must_use]
    pub fn gateway(&self, gateway: &str) -> String {
        format!("{}.gateway.{gateway}", self.set)
    }

    /// The queue of messages that returned from the levels. A daemon holds each for the rest of a
    /// second and sends it on. Also the exchange for messages whose `expiration` passed before a
    /// daemon took them.
    #[must_use]
    pub fn gateway_due(&self, gateway: &str) -> String {
        format!("{}.gateway-due.{gateway}", self.set)
    }

    /// The gateway that has a queue of this name.
    #[must_use]
    pub fn gateway_of<'a>(&self, queue: &'a str) -> Option<&'a str> {
        let rest = queue.strip_prefix(self.set.as_str())?;
        rest.strip_prefix(".gateway.").or_else(|| rest.strip_prefix(".gateway-due."))
    }

    /// The queue from which a canary receives its own messages. It is not part of the installed
    /// set. Each of several canaries has its own slot, from 0.
    #[must_use]
    pub fn canary(&self, slot: u8) -> String {
        format!("{}.canary.{slot}", self.set)
    }

    /// Whether this is the queue of a canary.
    #[must_use]
    pub fn is_canary(&self, queue: &str) -> bool {
        queue.strip_prefix(self.set.as_str()).is_some_and(|rest| rest.starts_with(".canary."))
    }

    /// The queue of an observer, which gets copies of an application's messages. It is not part of
    /// the installed set. `run` is a unique word.
    #[must_use]
    pub fn listener(&self, run: &str) -> String {
        format!("{}.listen.{run}", self.set)
    }

    /// Whether this is the queue of an observer.
    #[must_use]
    pub fn is_listener(&self, queue: &str) -> bool {
        queue.strip_prefix(self.set.as_str()).is_some_and(|rest| rest.starts_with(".listen."))
    }

    /// Whether this binding leads to the queue of an observer.
    #[must_use]
    pub fn listens(&self, bound: &Endpoint) -> bool {
        matches!(bound, Endpoint::Queue(queue) if self.is_listener(queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exchange_for_other_messages_is_restored_after_the_recalls() {
        let names = Names::new(SetName::default());
        let app = |key: &str| AppKey::new(key).unwrap();
        // Of all applications: a node restores several bindings at the same time.
        assert!(names.recall(&app("zzz")) < names.through(&app("0")));
        assert!(names.through(&app("zzz")) < names.unroutable());
    }

    #[test]
    fn a_set_is_one_word() {
        for name in ["delay", "Delay_2", "a-b", &"x".repeat(64)] {
            assert!(name.parse::<SetName>().is_ok(), "{name}");
        }
        for name in ["", "a.b", "a b", "amq", "ä", "a/b", "*", &"x".repeat(65)] {
            assert!(name.parse::<SetName>().is_err(), "{name}");
        }
    }

    #[test]
    fn the_top_level_is_the_entry() {
        let names = Names::new(SetName::default());
        assert_eq!(names.level_exchange(Level::TOP), "delay");
        assert_eq!(names.level_exchange(26.try_into().unwrap()), "delay.level.26");
        assert_eq!(names.level_queue(Level::TOP), "delay.level.27");
        assert_eq!(names.level_queue(Level::LOWEST), "delay.level.00");
    }

    #[test]
    fn a_shortcut_is_named_after_its_level_and_its_bits() {
        let names = Names::new(SetName::default());
        let shortcut = Shortcut::of(1, 0b0110).unwrap();
        assert_eq!(names.shortcut(shortcut), "delay.level.06.0110");
        assert_eq!(names.hop_of("delay.level.06.0110"), Some(Hop::Shortcut(shortcut)));
        assert_eq!(names.hop_of("delay.level.27"), Some(Hop::Level(Level::TOP)));
        for other in
            ["delay.level.06.1000", "delay.level.6", "delay.level.28", "delay.level.é", "other.level.06"]
        {
            assert_eq!(names.hop_of(other), None, "{other}");
        }
    }
}
