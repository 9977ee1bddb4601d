//! The help that stuck messages needed to arrive.

use std::fmt;

use serde::Serialize;

/// The help that an operator can give, the smallest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Help {
    /// Restarting the application.
    SubscribeAgain,
    /// `delayline unstick`.
    Unstick,
    /// Restarting the nodes that lead stuck levels.
    Restart,
}

impl Help {
    pub const ALL: [Self; 3] = [Self::SubscribeAgain, Self::Unstick, Self::Restart];

    /// Whether a broker of this version is known to need this help now and then, according to the
    /// table in docs/reference/versions.md.
    pub fn is_known_of(self, broker: &str) -> bool {
        let document = include_str!("../../docs/reference/versions.md");
        let (_, section) = document.split_once("## Help after a fault").expect("the section");
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut rows = section.lines().filter(|line| line.starts_with('|')).map(cells);
        let versions = rows.next().expect("the head of the table");
        let name = format!("`{self}`");
        let row = rows.find(|row| row[1] == name).unwrap_or_else(|| panic!("a row for {name}"));
        let of = |version: &&String| !version.is_empty() && broker.starts_with(&format!("{version}."));
        let column = versions.iter().position(|version| of(&version));
        // Nothing is known about a version that is not in the table.
        column.is_some_and(|column| row[column].starts_with("yes"))
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SubscribeAgain => "subscribe-again",
            Self::Unstick => "unstick",
            Self::Restart => "restart",
        })
    }
}
