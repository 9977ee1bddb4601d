//! Sets of an earlier version, whose keys spell the delay as 28 words of one bit: pure.
//!
//! Their exchanges and queues are the same as today's, so only the bindings differ.

use delayline_core::codec::{LEVELS, Level};

use delayline_core::topology::{Binding, Topology};

use crate::snapshot::Snapshot;

impl Snapshot {
    /// How many bindings between the exchanges and queues of a set are of an earlier version.
    /// While they exist, the set cannot route today's keys.
    #[must_use]
    pub fn earlier_bindings(&self, topology: &Topology) -> usize {
        let of_a_level =
            |name: &str| Level::all().any(|level| topology.names().level_exchange(level) == name);
        self.bindings()
            .iter()
            .filter(|binding| of_a_level(&binding.source) && one_bit_to_a_word(binding))
            .count()
    }
}

/// Whether a pattern expects 28 words of one bit, and fixes some of them.
fn one_bit_to_a_word(binding: &Binding) -> bool {
    let Some(words) = binding.key.strip_prefix("delay.") else { return false };
    let bits: Vec<_> = words.split('.').take(LEVELS.into()).collect();
    bits.len() == usize::from(LEVELS)
        && bits.iter().all(|word| matches!(*word, "*" | "0" | "1"))
        && bits.iter().any(|word| *word != "*")
}

#[cfg(test)]
mod tests {
    use delayline_core::topology::{Endpoint, Object, TopologySettings};

    use super::*;
    use crate::compare::Difference;

    /// The bindings of that version, of one level.
    fn earlier(topology: &Topology, level: Level) -> impl Iterator<Item = Binding> {
        let names = topology.names().clone();
        Level::all().filter(move |target| *target <= level).map(move |target| {
            let stars = |count: u8| "*.".repeat(count.into());
            let zeros = "0.".repeat(level.index() - target.index());
            Binding {
                source: names.level_exchange(level),
                destination: Endpoint::Queue(names.level_queue(target)),
                key: format!("delay.{}{zeros}1.{}*.#", stars(27 - level.number()), stars(target.number())),
            }
        })
    }

    #[test]
    fn an_earlier_set_is_one_finding_and_todays_is_none() {
        let topology = Topology::new(TopologySettings::default());
        let observed = Snapshot::default().with(topology.objects());
        assert_eq!(observed.earlier_bindings(&topology), 0);
        // Half of each: an installation over an older one.
        let objects: Vec<_> = earlier(&topology, 5.try_into().unwrap()).map(Object::Binding).collect();
        let mut observed = observed.with(&objects);
        assert_eq!(observed.earlier_bindings(&topology), 6);
        observed.retain_bindings(|_| false);
        let all = Level::all().flat_map(|level| earlier(&topology, level));
        let observed = observed.with(&all.map(Object::Binding).collect::<Vec<_>>());
        match &observed.compare(&topology)[..] {
            [difference @ Difference::EarlierVersion { bindings: 406 }] => {
                let text = difference.to_string();
                assert!(text.contains("this is a set of an earlier version"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}
