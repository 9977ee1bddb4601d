//! What messages needed to arrive, if they stayed where they were.

use std::fmt;

use serde::Serialize;

/// What an operator can do, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Help {
    /// Starting the application again.
    SubscribeAgain,
    /// `delayline unstick`.
    Unstick,
    /// Restarting the nodes that lead levels which hand on nothing.
    Restart,
}

impl Help {
    pub const ALL: [Self; 3] = [Self::SubscribeAgain, Self::Unstick, Self::Restart];

    /// Whether a broker of this version is known to need it now and then: whether the table
    /// in docs/compatibility.md says so.
    pub fn is_known_of(self, broker: &str) -> bool {
        let document = include_str!("../../docs/compatibility.md");
        let (_, section) = document.split_once("## Help after a fault").expect("the section");
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut rows = section.lines().filter(|line| line.starts_with('|')).map(cells);
        let versions = rows.next().expect("the head of the table");
        let name = format!("`{self}`");
        let row = rows.find(|row| row[1] == name).unwrap_or_else(|| panic!("a row for {name}"));
        let of = |version: &&String| !version.is_empty() && broker.starts_with(&format!("{version}."));
        let column = versions.iter().position(|version| of(&version));
        // Of a version that the table does not name nothing is known.
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
