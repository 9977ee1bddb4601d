//! The policies that give the exchanges of a layout an alternate exchange: pure.
//!
//! Only one policy applies to an exchange, the one with the highest priority. If no other policy applies,
//! ours is the only one. If another one applies, ours has a higher priority, repeats its settings and adds
//! the alternate exchange. Policies of users are never changed, so deleting ours restores the old state
//! exactly.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use delayline_broker::{ExchangeInfo, Policy, Snapshot, escape};
use delayline_core::topology::Endpoint;
use delayline_settings::Layout;

/// The argument and policy key for an alternate exchange.
pub const KEY: &str = "alternate-exchange";

/// The changes to the policies of a vhost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policing {
    /// Our policies as they should be, with the exchanges that each is for.
    pub wanted: Vec<(Policy, Covered)>,
    /// Names of our policies that are no longer needed.
    pub obsolete: Vec<String>,
    /// Why nothing may be changed.
    pub conflicts: Vec<String>,
}

/// The purpose of a policy of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Covered {
    /// Their names.
    pub exchanges: Vec<String>,
    /// The user's policy that applied until now; ours repeats its settings.
    pub merged_with: Option<String>,
}

impl Policing {
    /// How the existing policies differ from it.
    fn stale(&self, standing: &[Policy]) -> Vec<String> {
        let missing = self.wanted.iter().filter(|(policy, _)| !standing.contains(policy));
        let missing = missing.map(|(policy, covered)| {
            let (name, count) = (&policy.name, covered.exchanges.len());
            let stood = standing.iter().any(|other| other.name == *name);
            match (&covered.merged_with, stood) {
                (Some(theirs), true) => {
                    format!("policy `{name}` does not repeat the current settings of policy `{theirs}`")
                }
                (Some(theirs), false) => {
                    format!(
                        "policy `{theirs}` is for {count} of the exchanges, and no policy of the guard \
                         repeats it"
                    )
                }
                (None, _) => format!("policy `{name}` is not for exactly the {count} exchanges that need it"),
            }
        });
        let obsolete = self.obsolete.iter().map(|name| {
            format!(
                "policy `{name}` repeats a policy that was deleted, or that is no longer for these exchanges"
            )
        });
        missing.chain(obsolete).collect()
    }
}

/// The name of our policy, and the beginning of the names of our merged policies.
fn name(layout: &Layout) -> String {
    format!("delayline-guard-{layout}")
}

/// Whether a policy is ours.
pub fn is_ours(layout: &Layout, policy: &Policy) -> bool {
    let rest = policy.name.strip_prefix(&name(layout));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
}

/// Whether a policy is for an exchange of this name. `None` if its pattern cannot be read
/// here.
fn is_for(policy: &Policy, exchange: &str) -> Option<bool> {
    if !["all", "exchanges"].contains(&policy.apply_to.as_str()) {
        return Some(false);
    }
    policy.pattern.matches(exchange).ok()
}

/// Whether a policy of ours is for this exchange already.
fn covers(layout: &Layout, policies: &[Policy], exchange: &str) -> bool {
    policies.iter().any(|policy| is_ours(layout, policy) && is_for(policy, exchange) == Some(true))
}

/// The alternate exchange that an exchange has now, by argument or by policy; `None` also if
/// the broker may choose a policy that gives it none.
pub fn alternate(exchange: &ExchangeInfo, user: &[Policy]) -> Option<String> {
    if let Some(argument) = exchange.arguments.get(KEY) {
        return argument.as_str().map(str::to_owned);
    }
    let matching: Vec<_> =
        user.iter().filter(|policy| is_for(policy, &exchange.name) == Some(true)).collect();
    let highest = matching.iter().map(|policy| policy.priority).max()?;
    let holding = matching.iter().filter(|policy| policy.priority == highest);
    let set = |policy: &&Policy| Some(policy.definition.get(KEY)?.as_str()?.to_owned());
    let all: Option<Vec<_>> = holding.map(set).collect();
    all?.pop()
}

/// A conflict: a sentence around the exchanges that have it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conflict {
    before: String,
    /// The rest of the sentence after the exchanges; `None` if they are not named.
    after: Option<String>,
}

impl Conflict {
    fn of_all(text: String) -> Self {
        Self { before: text, after: None }
    }
}

/// The conflicts, each once, with its exchanges.
#[derive(Debug, Default)]
struct Conflicts(BTreeMap<Conflict, Vec<String>>);

impl Conflicts {
    fn extend(&mut self, conflict: Option<Conflict>, exchange: &str) {
        if let Some(conflict) = conflict {
            self.0.entry(conflict).or_default().push(exchange.to_owned());
        }
    }

    fn told(self) -> Vec<String> {
        let told = |(Conflict { before, after }, names): (Conflict, Vec<String>)| {
            let Some(after) = after else { return before };
            let exchanges = match &names[..] {
                [one] => format!("exchange `{one}`"),
                [one, other] => format!("the exchanges `{one}` and `{other}`"),
                [one, others @ ..] => format!("exchange `{one}` and {} others", others.len()),
                [] => "no exchange".into(),
            };
            format!("{before}{exchanges}{after}")
        };
        self.0.into_iter().map(told).collect()
    }
}

/// The policies that these exchanges need, beside the existing ones.
pub fn plan(layout: &Layout, exchanges: &[&ExchangeInfo], user: &[Policy], operator: &[Policy]) -> Policing {
    let mut plan = Policing::default();
    let mut conflicts = Conflicts::default();
    let mut groups: BTreeMap<Option<&str>, (Option<&Policy>, Vec<String>)> = BTreeMap::new();
    for exchange in exchanges {
        conflicts.extend(in_the_way(layout, exchange, operator), &exchange.name);
        match standing(layout, &exchange.name, user) {
            Ok(standing) => {
                conflicts.extend(standing.and_then(|policy| other(layout, policy)), &exchange.name);
                let group = groups.entry(standing.map(|policy| policy.name.as_str()));
                group.or_insert((standing, Vec::new())).1.push(exchange.name.clone());
            }
            Err(conflict) => conflicts.extend(Some(conflict), &exchange.name),
        }
    }
    plan.conflicts = conflicts.told();
    for (standing, exchanges) in groups.into_values() {
        let covered = Covered { merged_with: standing.map(|policy| policy.name.clone()), exchanges };
        plan.wanted.push((ours(layout, standing, &covered.exchanges), covered));
    }
    let wanted = |policy: &&Policy| plan.wanted.iter().any(|(wanted, _)| wanted.name == policy.name);
    let obsolete = user.iter().filter(|policy| is_ours(layout, policy) && !wanted(policy));
    plan.obsolete = obsolete.map(|policy| policy.name.clone()).collect();
    plan
}

/// The user's policy that applies to an exchange, or why it is unknown.
fn standing<'a>(layout: &Layout, exchange: &str, user: &'a [Policy]) -> Result<Option<&'a Policy>, Conflict> {
    let mut matching = Vec::new();
    for policy in user.iter().filter(|policy| !is_ours(layout, policy)) {
        match is_for(policy, exchange) {
            Some(true) => matching.push(policy),
            Some(false) => {}
            None => {
                return Err(Conflict::of_all(format!(
                    "the pattern of policy `{}`, `{}`, cannot be read here, so it is unknown whether the \
                     policy is for the exchanges of this layout. Write it more simply, or make the policy \
                     apply to queues only",
                    policy.name, policy.pattern
                )));
            }
        }
    }
    let Some(highest) = matching.iter().map(|policy| policy.priority).max() else { return Ok(None) };
    matching.retain(|policy| policy.priority == highest);
    matching.sort_by(|one, other| one.name.cmp(&other.name));
    match &matching[..] {
        [one, others @ ..] if others.iter().any(|other| other.definition != one.definition) => {
            Err(Conflict {
                before: format!(
                    "the policies `{}` and `{}` have the same priority, so the broker chooses which of them \
                 applies to ",
                    one.name, others[0].name
                ),
                after: Some(". Give one of them another priority first".into()),
            })
        }
        matching => Ok(matching.first().copied()),
    }
}

/// A conflict with an argument or operator policy that a policy of ours would not change.
fn in_the_way(layout: &Layout, exchange: &ExchangeInfo, operator: &[Policy]) -> Option<Conflict> {
    let name = &exchange.name;
    if let Some(argument) = exchange.arguments.get(KEY)
        && argument.as_str() != Some(&layout.kept())
    {
        return Some(Conflict {
            before: format!(
                "the alternate exchange `{}` is an argument of ",
                argument.as_str().unwrap_or("?")
            ),
            after: Some(", which no policy can override: unroutable messages go there already".into()),
        });
    }
    let sets = |policy: &&Policy| policy.definition.contains_key(KEY) && is_for(policy, name) != Some(false);
    let policy = operator.iter().find(sets)?;
    Some(Conflict::of_all(format!(
        "the operator policy `{}` sets an alternate exchange, which no policy can override",
        policy.name
    )))
}

/// Whether an existing policy sets another alternate exchange.
fn other(layout: &Layout, policy: &Policy) -> Option<Conflict> {
    let alternate = policy.definition.get(KEY)?.as_str().unwrap_or("?");
    (alternate != layout.kept()).then(|| Conflict {
        before: format!("policy `{}` already gives the alternate exchange `{alternate}` to ", policy.name),
        after: Some(format!(
            ": unroutable messages go there and stall nothing. To have this guard instead, remove `{KEY}` \
             from that policy"
        )),
    })
}

/// Our policy for exactly these exchanges: the settings of the existing one, and the alternate exchange.
fn ours(layout: &Layout, standing: Option<&Policy>, exchanges: &[String]) -> Policy {
    let mut names: Vec<_> = exchanges.iter().map(|name| escape(name)).collect();
    names.sort();
    let mut definition = standing.map(|policy| policy.definition.clone()).unwrap_or_default();
    definition.insert(KEY.into(), Json::from(layout.kept()));
    Policy {
        name: standing.map_or_else(|| name(layout), |policy| format!("{}+{}", name(layout), policy.name)),
        pattern: format!("^(?:{})$", names.join("|")).into(),
        apply_to: "exchanges".into(),
        definition,
        priority: standing.map_or(0, |policy| policy.priority.saturating_add(1)),
    }
}

/// The exchanges to guard: those of the layout, and of those that messages are delivered through all, or
/// only those already guarded.
pub fn covered<'a>(
    layout: &Layout,
    snapshot: &'a Snapshot,
    policies: &[Policy],
    all_targets: bool,
) -> Vec<&'a ExchangeInfo> {
    let (names, targets) = (layout.exchanges(), targets(layout, snapshot));
    let wanted = |exchange: &&ExchangeInfo| {
        let target = || targets.contains(&exchange.name);
        names.contains(&exchange.name)
            || target() && (all_targets || covers(layout, policies, &exchange.name))
    };
    snapshot.exchanges.values().filter(wanted).collect()
}

/// How the policies of an existing guard differ from those that would be set now; empty without a guard.
pub fn stale(layout: &Layout, snapshot: &Snapshot) -> Vec<String> {
    let Ok(policies) = &snapshot.policies.user else { return Vec::new() };
    if !policies.iter().any(|policy| is_ours(layout, policy)) {
        return Vec::new();
    }
    // Operator policies can only be conflicts for a guard.
    plan(layout, &covered(layout, snapshot, policies, false), policies, &[]).stale(policies)
}

/// The exchanges that messages are delivered through.
pub fn targets(layout: &Layout, snapshot: &Snapshot) -> BTreeSet<String> {
    let delivery = layout.delivery();
    let through = snapshot.bindings_from(&delivery).iter().filter_map(|binding| match &binding.destination {
        Endpoint::Exchange(exchange) => Some(exchange.clone()),
        Endpoint::Queue(_) => None,
    });
    through.collect()
}

/// Those of them that have no alternate and get none.
pub fn uncovered(targets: &BTreeSet<String>, snapshot: &Snapshot, covered: &[&ExchangeInfo]) -> Vec<String> {
    let bare = |exchange: &&ExchangeInfo| {
        targets.contains(&exchange.name)
            && !exchange.arguments.contains_key(KEY)
            && !covered.iter().any(|other| other.name == exchange.name)
    };
    snapshot.exchanges.values().filter(bare).map(|exchange| exchange.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn exchanges(layout: &Layout) -> Vec<ExchangeInfo> {
        let info = |name: String| ExchangeInfo { name, ..ExchangeInfo::default() };
        layout.exchanges().into_iter().map(info).collect()
    }

    fn policy(name: &str, pattern: &str, apply_to: &str, priority: i64, definition: Json) -> Policy {
        serde_json::from_value(json!({
            "name": name, "pattern": pattern, "apply-to": apply_to, "priority": priority, "definition": definition,
        }))
        .unwrap()
    }

    fn planned(user: &[Policy], operator: &[Policy]) -> Policing {
        let layout = Layout::nservicebus();
        let exchanges = exchanges(&layout);
        plan(&layout, &exchanges.iter().collect::<Vec<_>>(), user, operator)
    }

    #[test]
    fn without_other_policies_one_policy_is_for_exactly_these_exchanges() {
        let plan = planned(&[policy("queues", ".*", "queues", 5, json!({"max-length": 1}))], &[]);
        let [(policy, covered)] = &plan.wanted[..] else { panic!("{plan:#?}") };
        assert_eq!((covered.exchanges.len(), &covered.merged_with), (29, &None));
        assert_eq!(policy.definition, [(KEY.to_owned(), "delayline.guard.nservicebus".into())].into());
        let matches = |name: &str| policy.pattern.matches(name) == Ok(true);
        assert!(matches("nsb.v2.delay-level-00") && matches("nsb.v2.delay-delivery"));
        for other in ["nsb.v2.delay-level-000", "nsbxv2.delay-level-00", "nsb.v2.delay-level-28", "Sales"] {
            assert!(!matches(other), "{other}");
        }
        assert!(plan.conflicts.is_empty() && plan.obsolete.is_empty());
    }

    #[test]
    fn an_existing_policy_is_merged_and_stays() {
        let federation = json!({"federation-upstream-set": "all"});
        let standing = [
            policy("low", ".", "all", -3, json!({"federation-upstream": "x"})),
            policy("federate", "^nsb", "exchanges", 7, federation),
            policy("own", "level-00$", "exchanges", 9, json!({})),
        ];
        let plan = planned(&standing, &[]);
        let told: Vec<_> = plan
            .wanted
            .iter()
            .map(|(policy, covered)| {
                (policy.name.as_str(), policy.priority, covered.exchanges.len(), policy.definition.len())
            })
            .collect();
        let expected = [
            ("delayline-guard-nservicebus+federate", 8, 28, 2),
            ("delayline-guard-nservicebus+own", 10, 1, 1),
        ];
        assert_eq!(told, expected);
        // The same again with ours in place; once theirs is gone, ours follows.
        let mut both = standing.to_vec();
        both.extend(plan.wanted.iter().map(|(policy, _)| policy.clone()));
        assert_eq!(planned(&both, &[]).wanted, plan.wanted);
        both.retain(|policy| policy.name != "own");
        assert_eq!(planned(&both, &[]).obsolete, ["delayline-guard-nservicebus+own"]);
    }

    #[test]
    fn a_guard_is_stale_once_a_repeated_policy_has_changed() {
        let layout = Layout::nservicebus();
        let theirs = |limit: u32| policy("theirs", "delivery$", "all", 3, json!({"max-length": limit}));
        let ours = |user: &[Policy]| {
            planned(user, &[]).wanted.into_iter().map(|(policy, _)| policy).collect::<Vec<_>>()
        };
        let stale = |user: &[Policy]| planned(user, &[]).stale(user);
        let with = |theirs: Policy, ours: &[Policy]| [&[theirs], ours].concat();
        let merged = ours(&[theirs(1)]);
        assert_eq!(merged.len(), 2);
        assert!(stale(&with(theirs(1), &merged)).is_empty());
        let said = stale(&with(theirs(2), &merged));
        assert!(said.len() == 1 && said[0].contains("the current settings of policy `theirs`"), "{said:?}");
        let said = stale(&merged);
        assert!(
            said.iter().any(|text| text.contains("`delayline-guard-nservicebus+theirs` repeats")),
            "{said:?}"
        );
        assert!(said.iter().any(|text| text.contains("the 29 exchanges")), "{said:?}");
        let said = stale(&with(theirs(1), &ours(&[])));
        assert!(said.iter().any(|text| text.contains("no policy of the guard repeats it")), "{said:?}");
        let mut snapshot = Snapshot::new("/", exchanges(&layout), Vec::new(), Vec::new());
        snapshot.policies.user = Ok(vec![theirs(1)]);
        assert!(super::stale(&layout, &snapshot).is_empty(), "there is no guard");
        snapshot.policies.user = Ok(with(theirs(2), &merged));
        assert_eq!(super::stale(&layout, &snapshot).len(), 1);
    }

    #[test]
    fn another_alternate_exchange_is_a_conflict() {
        let aside = json!({KEY: "aside"});
        let theirs = [policy("theirs", "delivery$", "all", 0, aside.clone())];
        let said = planned(&theirs, &[]).conflicts;
        assert!(said.len() == 1 && said[0].contains("`theirs`") && said[0].contains("`aside`"), "{said:?}");
        let same = [policy("theirs", "delivery$", "all", 0, json!({KEY: "delayline.guard.nservicebus"}))];
        assert!(planned(&same, &[]).conflicts.is_empty());
        assert_eq!(planned(&[], &theirs).conflicts.len(), 1);
        let layout = Layout::nservicebus();
        let mut exchanges = exchanges(&layout);
        exchanges[3].arguments.insert(KEY.into(), "aside".into());
        let said = plan(&layout, &exchanges.iter().collect::<Vec<_>>(), &[], &[]).conflicts;
        assert!(said.len() == 1 && said[0].contains("level-24"), "{said:?}");
        // The same conflict of several exchanges is one conflict.
        let said = planned(&[policy("theirs", ".", "all", 0, aside)], &[]).conflicts;
        assert!(said.len() == 1 && said[0].contains(" and 28 others: "), "{said:?}");
    }

    #[test]
    fn an_unreadable_or_ambiguous_policy_is_a_conflict() {
        let tie = [
            policy("a", "delivery$", "all", 1, json!({"federation-upstream": "x"})),
            policy("b", "delivery$", "all", 1, json!({})),
        ];
        let said = planned(&tie, &[]).conflicts;
        assert!(said.len() == 1 && said[0].contains("`a` and `b`"), "{said:?}");
        let alike =
            [policy("a", "delivery$", "all", 1, json!({})), policy("b", "delivery$", "all", 1, json!({}))];
        assert!(planned(&alike, &[]).conflicts.is_empty());
        let said = planned(&[policy("odd", "(", "all", 0, json!({}))], &[]).conflicts;
        assert!(said.len() == 1 && said[0].contains("`odd`"), "{said:?}");
    }

    #[test]
    fn policies_of_other_layouts_are_not_ours() {
        let layout = Layout::celery(None);
        let named = |name: &str| Policy { name: name.into(), ..Policy::default() };
        assert!(is_ours(&layout, &named("delayline-guard-celery")));
        assert!(is_ours(&layout, &named("delayline-guard-celery+theirs")));
        for other in ["delayline-guard-celery:eu", "delayline-guard-nservicebus", "celery"] {
            assert!(!is_ours(&layout, &named(other)), "{other}");
        }
    }
}
