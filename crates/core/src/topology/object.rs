//! The kinds of objects a topology consists of.

use std::{collections::BTreeMap, fmt};

use crate::codec::{Hop, Level};

/// The value of an optional argument (`x-…`) of an exchange or queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum Argument {
    /// A 64-bit number.
    Number(i64),
    /// Text.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

impl From<i64> for Argument {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Argument {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Argument {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Arguments by name, in the order of their names.
pub(crate) type Arguments = BTreeMap<String, Argument>;

/// How an exchange routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum ExchangeKind {
    /// By pattern.
    Topic,
    /// By equal key.
    Direct,
    /// To everything bound to it.
    Fanout,
    /// By headers.
    Headers,
}

impl ExchangeKind {
    /// The broker's name for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
        }
    }
}

/// A durable exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// How it routes.
    #[cfg_attr(feature = "serde", serde(rename = "type"))]
    pub kind: ExchangeKind,
    /// Its optional arguments.
    pub arguments: BTreeMap<String, Argument>,
}

/// A durable queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Its level, if it is one of the level queues, or a shortcut: then that of its highest bit.
    pub level: Option<Level>,
    /// What messages wait for in it, if it is one of these.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub hop: Option<Hop>,
    /// Its optional arguments.
    pub arguments: BTreeMap<String, Argument>,
}

impl Exchange {
    /// One without arguments.
    pub fn new(name: impl Into<String>, kind: ExchangeKind) -> Self {
        Self { name: name.into(), kind, arguments: BTreeMap::new() }
    }

    /// The same, with these arguments instead of those that it had.
    #[must_use]
    pub fn with_arguments(mut self, arguments: impl IntoIterator<Item = (String, Argument)>) -> Self {
        self.arguments = arguments.into_iter().collect();
        self
    }
}

impl Queue {
    /// A queue that is not a level queue and has no arguments.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), level: None, hop: None, arguments: BTreeMap::new() }
    }

    /// The same, with these arguments instead of those that it had.
    #[must_use]
    pub fn with_arguments(mut self, arguments: impl IntoIterator<Item = (String, Argument)>) -> Self {
        self.arguments = arguments.into_iter().collect();
        self
    }

    /// The value of `x-queue-type` of a stream.
    pub(crate) const STREAM: &'static str = "stream";

    /// Whether it is a stream: reading takes nothing out of it, and it cannot be purged.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.arguments.get("x-queue-type") == Some(&Self::STREAM.into())
    }
}

/// What a binding leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Endpoint {
    /// A queue, by name.
    Queue(String),
    /// An exchange, by name.
    Exchange(String),
}

impl Endpoint {
    /// The name of the queue or exchange.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue `{name}`"),
            Self::Exchange(name) => write!(f, "exchange `{name}`"),
        }
    }
}

/// A binding from an exchange to a queue or another exchange.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Binding {
    /// The exchange that messages come from.
    pub source: String,
    /// Where they go.
    pub destination: Endpoint,
    /// The binding key: a pattern on a topic exchange.
    pub key: String,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "binding `{}` -> {} with key `{}`", self.source, self.destination, self.key)
    }
}

/// One thing to declare on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// An exchange.
    Exchange(Exchange),
    /// A queue.
    Queue(Queue),
    /// A binding between them.
    Binding(Binding),
}

impl Object {
    /// The name of the exchange or queue; bindings have none.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Exchange(exchange) => Some(&exchange.name),
            Self::Queue(queue) => Some(&queue.name),
            Self::Binding(_) => None,
        }
    }
}
