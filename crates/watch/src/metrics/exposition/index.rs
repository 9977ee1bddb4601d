//! The index of scheduled messages.

use std::fmt::Error;

use super::{Exposition, Out, f, number};

/// The most applications with series of their own, the first by name.
const MOST_APPS: usize = 100;

impl Exposition {
    pub(super) fn index(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let Some(index) = &self.inside.index else { return Ok(()) };
        let journals = index.journals();
        let of = |value: fn(&delayline_admin::IndexedJournal) -> Option<u64>| {
            let known = journals.iter().filter_map(move |it| Some((it.app.clone(), number(value(it)?))));
            known.take(MOST_APPS).collect::<Vec<_>>()
        };
        out.labelled(f::INDEXED, "app", of(|it| it.messages))?;
        out.labelled(f::INDEX_BEHIND, "app", of(|it| it.behind))?;
        out.number(f::INDEX_BYTES, Some(number(journals.iter().map(|it| it.bytes).sum())))
    }
}
