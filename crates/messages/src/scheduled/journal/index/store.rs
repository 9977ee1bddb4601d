//! The waiting messages of one journal in a temporary SQLite database, which ends with the process.

use std::ops::Range;

use jiff::Timestamp;
use rusqlite::{Connection, Row as SqlRow, params_from_iter, types::Value as Sql};

use delayline_core::codec::{AppKey, Delay, MessageId, RoutingKey};

use crate::scheduled::journal::{Estimated, entry::Entry};

/// The lengths of the slots in which messages are counted, in ms.
pub(super) const MINUTE: i64 = 60_000;
const DAY: i64 = 1_440 * MINUTE;

/// The longest header value that is kept, in bytes.
pub(super) const MAX_VALUE: usize = 128;

/// The last suffix of a renewed id: ten times `z`.
const LAST_SUFFIX: u64 = 36_u64.pow(10) - 1;

/// SQLite keeps 0.5 MB of a database in memory (more made nothing faster), and the rest in a file that it deleted after it was opened.
const SCHEMA: &str = "
PRAGMA journal_mode = MEMORY;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -512;
CREATE TABLE message (
    n INTEGER PRIMARY KEY, due INTEGER NOT NULL, latest INTEGER, delay INTEGER NOT NULL, id TEXT,
    attempt INTEGER NOT NULL, bytes INTEGER NOT NULL, place INTEGER NOT NULL, copies INTEGER NOT NULL,
    damaged INTEGER NOT NULL
);
CREATE INDEX by_due ON message (due, delay, id, copies);
CREATE UNIQUE INDEX by_id ON message (id, delay, due) WHERE id IS NOT NULL;
CREATE INDEX by_damage ON message (due) WHERE damaged;
";

/// Counts the messages in slots of a length.
fn slots(name: &str, length: i64) -> String {
    format!(
        "CREATE TABLE {name} (
             number INTEGER PRIMARY KEY, messages INTEGER NOT NULL, estimated INTEGER NOT NULL,
             later INTEGER NOT NULL
         );
         CREATE TRIGGER added_to_{name} AFTER INSERT ON message BEGIN
             INSERT INTO {name} VALUES
                 (new.due / {length}, 1, new.latest IS NOT NULL, coalesce(new.latest - new.due, 0))
             ON CONFLICT DO UPDATE SET messages = messages + 1, estimated = estimated + excluded.estimated,
                 later = max(later, excluded.later);
         END;
         CREATE TRIGGER repeated_in_{name} AFTER UPDATE OF copies ON message BEGIN
             UPDATE {name} SET messages = messages + 1, estimated = estimated + (new.latest IS NOT NULL)
             WHERE number = new.due / {length};
         END;"
    )
}

/// A message for the store.
pub(super) struct Row {
    pub(super) entry: Entry,
    /// Whether its headers cannot be read.
    pub(super) damaged: bool,
    /// The values of the indexed headers, in their order.
    pub(super) headers: Vec<Option<String>>,
}

/// The messages of a journal.
pub(super) struct Store {
    db: Connection,
    app: AppKey,
    insert: String,
}

/// Which messages: their due times in ms since the epoch, and their contents.
#[derive(Clone, Default)]
pub(super) struct Chosen<'a> {
    /// Those that are due at this time or later, at the latest.
    pub(super) from: i64,
    /// Those that are due before this time, at the earliest.
    pub(super) until: i64,
    /// How much later than its earliest due time a message is due at most.
    pub(super) width: i64,
    pub(super) id: Option<&'a MessageId>,
    /// Those with all these values, each with the place of its header.
    pub(super) headers: Vec<(usize, &'a str)>,
    pub(super) place: Option<u64>,
    /// Only those whose headers cannot be read.
    pub(super) damaged: bool,
}

/// Messages that are chosen in one query: the end of a SELECT without a limit, with its parameters.
struct Part(String, Vec<Sql>);

impl Chosen<'_> {
    /// The parts by due time. Only in the first one some messages are too early, so that in the other one a
    /// page is found in an index alone.
    fn parts(&self) -> impl Iterator<Item = Part> {
        let earliest = self.from.saturating_sub(self.width);
        let unsure =
            (earliest < self.from).then(|| self.part(earliest, self.from.min(self.until), Some(self.from)));
        unsure.into_iter().chain([self.part(self.from, self.until, None)])
    }

    fn part(&self, from: i64, until: i64, latest: Option<i64>) -> Part {
        // Without statistics, SQLite would prefer the order to the few messages with an id.
        let no_index = if self.id.is_some() { "+" } else { "" };
        let index = if self.damaged { " INDEXED BY by_damage" } else { "" };
        let mut query = format!("FROM message{index} WHERE {no_index}due >= ? AND {no_index}due < ?");
        let mut values = vec![from.into(), until.into()];
        if let Some(latest) = latest {
            query += " AND latest >= ?";
            values.push(latest.into());
        }
        if let Some(id) = self.id {
            query += " AND (id = ? OR id >= ? AND id <= ?)";
            let renewed = [0, LAST_SUFFIX].map(|suffix| id.with_suffix(suffix).to_string());
            values.push(id.to_string().into());
            values.extend(renewed.map(Sql::from));
        }
        for (number, value) in &self.headers {
            query += &format!(" AND {no_index}h{number} = ?");
            values.push((*value).to_owned().into());
        }
        if let Some(place) = self.place {
            query += " AND place = ?";
            values.push(place.cast_signed().into());
        }
        if self.damaged {
            query += " AND damaged";
        }
        Part(query + " ORDER BY due, delay, id, copies, n", values)
    }
}

impl Store {
    /// An empty store with this number of indexed headers.
    pub(super) fn open(app: &AppKey, headers: usize) -> rusqlite::Result<Self> {
        let db = Connection::open("")?;
        db.execute_batch(SCHEMA)?;
        for (name, length) in [("minute", MINUTE), ("day", DAY)] {
            db.execute_batch(&slots(name, length))?;
        }
        let mut insert =
            "INSERT INTO message (due, latest, delay, id, attempt, bytes, place, copies, damaged".to_owned();
        for number in 0..headers {
            db.execute_batch(&format!(
                "ALTER TABLE message ADD COLUMN h{number} TEXT;
                 CREATE INDEX by_h{number} ON message (h{number}, due) WHERE h{number} IS NOT NULL"
            ))?;
            insert += &format!(", h{number}");
        }
        insert += ") VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?";
        insert += &", ?".repeat(headers);
        insert += ") ON CONFLICT (id, delay, due) WHERE id IS NOT NULL
                   DO UPDATE SET copies = copies + 1, place = excluded.place";
        Ok(Self { db, app: app.clone(), insert })
    }

    /// Adds messages, and removes them from the list.
    pub(super) fn add(&mut self, rows: &mut Vec<Row>) -> rusqlite::Result<()> {
        let all = self.db.transaction()?;
        {
            let mut insert = all.prepare_cached(&self.insert)?;
            for Row { entry, damaged, headers } in rows.drain(..) {
                let values = [
                    entry.due.as_millisecond().into(),
                    entry.latest.map(Timestamp::as_millisecond).into(),
                    i64::from(entry.key.delay.seconds()).into(),
                    entry.key.id().map(ToString::to_string).into(),
                    i64::from(entry.attempt).into(),
                    number(entry.bytes),
                    entry.place.cast_signed().into(),
                    damaged.into(),
                ];
                insert.execute(params_from_iter(
                    values.into_iter().chain(headers.into_iter().map(Sql::from)),
                ))?;
            }
        }
        all.commit()
    }

    /// Removes messages that were due, `most` at most. Returns their number.
    pub(super) fn remove_due(&self, now: Timestamp, most: usize) -> rusqlite::Result<usize> {
        let now = now.as_millisecond();
        let mut remove = self.db.prepare_cached(
            "DELETE FROM message WHERE n IN
             (SELECT n FROM message WHERE due < ?1 AND coalesce(latest, due) < ?1 LIMIT ?2)",
        )?;
        let removed = remove.execute((now, i64::try_from(most).unwrap_or(i64::MAX)))?;
        for (name, length) in [("minute", MINUTE), ("day", DAY)] {
            self.db
                .prepare_cached(&format!("DELETE FROM {name} WHERE number < ?"))?
                .execute([now / length])?;
        }
        Ok(removed)
    }

    /// How many bytes it takes, in its file and in memory.
    pub(super) fn bytes(&self) -> rusqlite::Result<u64> {
        let pages = self.db.query_row(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
            [],
            |row| row.get::<_, i64>(0),
        )?;
        Ok(u64::try_from(pages).unwrap_or(0))
    }

    /// How many messages wait. `width` is as in [`Chosen`].
    pub(super) fn waiting(&self, now: Timestamp, width: i64) -> rusqlite::Result<u64> {
        let from = now.as_millisecond();
        let begin = (from / MINUTE + 1) * MINUTE;
        let first = self.count(&Chosen { from, until: begin, width, ..Chosen::default() }, usize::MAX)?;
        Ok(first + self.total(begin / MINUTE..i64::MAX / MINUTE)?.0)
    }

    /// Hands messages to `each`, with their number of copies, by due time. `page` is how many to leave out,
    /// and how many follow at most.
    pub(super) fn each(
        &self,
        chosen: &Chosen<'_>,
        page: Option<(usize, usize)>,
        mut each: impl FnMut(Entry, u64),
    ) -> rusqlite::Result<()> {
        let (mut skip, mut left) = page.unwrap_or((0, usize::MAX));
        for part in chosen.parts() {
            let mut select = self.db.prepare_cached(&format!(
                "SELECT due, latest, delay, id, attempt, bytes, place, copies {} LIMIT ? OFFSET ?",
                part.0
            ))?;
            let limits = [number(left), number(skip)];
            let mut rows = select.query(params_from_iter(part.1.iter().chain(&limits)))?;
            let mut found = 0;
            while let Some(row) = rows.next()? {
                found += 1;
                if let Some(entry) = self.entry(row)? {
                    each(entry, unsigned(row.get(7)?));
                }
            }
            skip = match found {
                0 if skip > 0 => skip - self.sum(&part, skip)?.0,
                _ => 0,
            };
            left -= found;
        }
        Ok(())
    }

    /// The number of messages in a part, and of their copies, `most` messages at most.
    fn sum(&self, Part(part, values): &Part, most: usize) -> rusqlite::Result<(usize, u64)> {
        let sql = format!("SELECT count(*), coalesce(sum(copies), 0) FROM (SELECT copies {part} LIMIT ?)");
        let most = [number(most)];
        self.db.prepare_cached(&sql)?.query_row(params_from_iter(values.iter().chain(&most)), |row| {
            let rows = usize::try_from(unsigned(row.get(0)?)).unwrap_or(usize::MAX);
            Ok((rows, unsigned(row.get(1)?)))
        })
    }

    /// Hands the beginning of each minute to `each` in which messages are due, with their number. Returns how
    /// many of all these have no exact due time.
    pub(super) fn minutes(
        &self,
        minutes: Range<i64>,
        mut each: impl FnMut(i64, u64),
    ) -> rusqlite::Result<Estimated> {
        let mut all = Estimated::default();
        let mut select = self.db.prepare_cached(
            "SELECT number, messages, estimated, later FROM minute WHERE number >= ? AND number < ? ORDER BY number",
        )?;
        let mut rows = select.query((minutes.start, minutes.end))?;
        while let Some(row) = rows.next()? {
            each(row.get(0)?, unsigned(row.get(1)?));
            all.messages += unsigned(row.get(2)?);
            all.seconds = all.seconds.max(unsigned(row.get(3)?) / 1_000);
        }
        Ok(all)
    }

    /// How many messages are due in these minutes, and how many of them have no exact due time.
    pub(super) fn total(&self, minutes: Range<i64>) -> rusqlite::Result<(u64, Estimated)> {
        const EACH: i64 = DAY / MINUTE;
        let days = (minutes.start + EACH - 1) / EACH..minutes.end / EACH;
        let parts = match days.is_empty() {
            true => vec![("minute", minutes)],
            false => vec![
                ("minute", minutes.start..days.start * EACH),
                ("minute", days.end * EACH..minutes.end),
                ("day", days),
            ],
        };
        let (mut messages, mut all) = (0, Estimated::default());
        for (slots, Range { start, end }) in parts {
            let mut select = self.db.prepare_cached(&format!(
                "SELECT coalesce(sum(messages), 0), coalesce(sum(estimated), 0), coalesce(max(later), 0)
                 FROM {slots} WHERE number >= ? AND number < ?"
            ))?;
            let [count, estimated, later] = select.query_row((start, end), |row| {
                Ok([unsigned(row.get(0)?), unsigned(row.get(1)?), unsigned(row.get(2)?)])
            })?;
            messages += count;
            all.messages += estimated;
            all.seconds = all.seconds.max(later / 1_000);
        }
        Ok((messages, all))
    }

    /// How many messages are chosen; a copy counts as one. `most` is how many rows are counted at most.
    pub(super) fn count(&self, chosen: &Chosen<'_>, mut most: usize) -> rusqlite::Result<u64> {
        let mut count = 0;
        for part in chosen.parts() {
            let (rows, copies) = self.sum(&part, most)?;
            most -= rows;
            count += copies;
        }
        Ok(count)
    }

    fn entry(&self, row: &SqlRow<'_>) -> rusqlite::Result<Option<Entry>> {
        let Ok(delay) = Delay::from_seconds(unsigned(row.get(2)?)) else { return Ok(None) };
        let key = RoutingKey::new(delay, self.app.clone());
        let id = row.get::<_, Option<String>>(3)?.and_then(|id| MessageId::new(id).ok());
        let key = match id {
            Some(id) => key.with_id(id),
            None => Ok(key),
        };
        let Ok(key) = key else { return Ok(None) };
        Ok(Some(Entry {
            key,
            due: time(row.get(0)?),
            latest: row.get::<_, Option<i64>>(1)?.map(time),
            attempt: row.get(4)?,
            bytes: usize::try_from(unsigned(row.get(5)?)).unwrap_or(usize::MAX),
            place: unsigned(row.get(6)?),
        }))
    }
}

fn number(number: usize) -> Sql {
    i64::try_from(number).unwrap_or(i64::MAX).into()
}

fn time(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(millisecond).unwrap_or(Timestamp::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How SQLite finds what is asked for.
    fn plans(store: &Store, chosen: &Chosen<'_>) -> Vec<String> {
        let plan = |Part(part, values): Part| {
            let sql = format!("EXPLAIN QUERY PLAN SELECT copies {part}");
            let mut select = store.db.prepare(&sql).unwrap();
            let rows = select.query_map(params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
            rows.map(Result::unwrap).collect::<Vec<_>>().join("; ")
        };
        chosen.parts().map(plan).collect()
    }

    #[test]
    fn every_question_is_answered_with_an_index() {
        let store = Store::open(&AppKey::new("billing").unwrap(), 2).unwrap();
        let id = "a".parse().unwrap();
        let any = || Chosen { until: i64::MAX, ..Chosen::default() };
        // A page needs neither sorting nor, to skip messages, the messages.
        assert_eq!(plans(&store, &any()), ["SEARCH message USING COVERING INDEX by_due (due>? AND due<?)"]);
        let headers = vec![(1, "C-4")];
        for (chosen, index) in [
            (Chosen { width: 5, ..any() }, "by_due (due>? AND due<?)"),
            (Chosen { id: Some(&id), ..any() }, "by_id (id>? AND id<?)"),
            (Chosen { headers: headers.clone(), ..any() }, "by_h1 (h1=? AND due>? AND due<?)"),
            (Chosen { headers, id: Some(&id), width: 5, ..any() }, "by_id (id>? AND id<?)"),
            (Chosen { damaged: true, ..any() }, "by_damage (due>? AND due<?)"),
        ] {
            let plans = plans(&store, &chosen);
            assert!(plans.iter().all(|plan| plan.contains(index)), "{plans:?}");
        }
    }
}
