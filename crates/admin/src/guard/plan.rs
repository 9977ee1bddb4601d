//! Which policies give the exchanges of a layout an alternate exchange: pure.
//!
//! Only one policy applies to an exchange, the one with the highest priority. Where nobody
//! else's applies, ours stands alone. Where one does, ours stands above it and says all that
//! it says, and one thing more. Nobody else's is ever changed, so deleting ours brings back
//! exactly what was.

use std::collections::BTreeMap;

use fancy_regex::Regex;
use serde_json::Value as Json;

use crate::{
    Layout,
    management::{ExchangeInfo, Policy},
};

/// The key and the argument by which an exchange gets an alternate.
pub(crate) const KEY: &str = "alternate-exchange";

/// What to do with the policies of a vhost.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Plan {
    /// Policies of ours as they should be, with the exchanges that each is for.
    pub(super) wanted: Vec<(Policy, Covered)>,
    /// Names of policies of ours that are not wanted any more.
    pub(super) obsolete: Vec<String>,
    /// Why nothing may be changed.
    pub(super) conflicts: Vec<String>,
}

/// What a policy of ours is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Covered {
    pub(super) exchanges: Vec<String>,
    /// The policy of somebody else that applied until now, and still does in all it says.
    pub(super) merged_with: Option<String>,
}

impl Plan {
    /// How what stands differs from it.
    pub(super) fn stale(&self, standing: &[Policy]) -> Vec<String> {
        let missing = self.wanted.iter().filter(|(policy, _)| !standing.contains(policy));
        let missing = missing.map(|(policy, covered)| {
            let (name, count) = (&policy.name, covered.exchanges.len());
            let stood = standing.iter().any(|other| other.name == *name);
            match (&covered.merged_with, stood) {
                (Some(theirs), true) => {
                    format!("policy `{name}` does not repeat what policy `{theirs}` says now")
                }
                (Some(theirs), false) => {
                    format!(
                        "policy `{theirs}` is for {count} of the exchanges, and nothing repeats what it says"
                    )
                }
                (None, _) => format!("policy `{name}` is not for exactly the {count} exchanges that need it"),
            }
        });
        let obsolete = self.obsolete.iter().map(|name| {
            format!(
                "policy `{name}` repeats a policy that is gone, or that is not for these exchanges any more"
            )
        });
        missing.chain(obsolete).collect()
    }
}

/// The name of our policy, and the beginning of the names of those that are merged.
pub(super) fn name(layout: &Layout) -> String {
    format!("delayline-guard-{layout}")
}

/// Whether a policy is ours.
pub(super) fn is_ours(layout: &Layout, policy: &Policy) -> bool {
    let rest = policy.name.strip_prefix(&name(layout));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
}

/// Whether a policy is for an exchange of this name. `None` if its pattern cannot be read
/// here.
fn is_for(policy: &Policy, exchange: &str) -> Option<bool> {
    if !["all", "exchanges"].contains(&policy.apply_to.as_str()) {
        return Some(false);
    }
    Regex::new(&policy.pattern).ok()?.is_match(exchange).ok()
}

/// Whether one of our policies is for this exchange already.
pub(super) fn covers(layout: &Layout, policies: &[Policy], exchange: &str) -> bool {
    policies.iter().any(|policy| is_ours(layout, policy) && is_for(policy, exchange) == Some(true))
}

/// The alternate exchange that an exchange has now, by argument or by policy; `None` also if
/// the broker may choose a policy that gives it none.
pub(crate) fn alternate(exchange: &ExchangeInfo, user: &[Policy]) -> Option<String> {
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

/// What is in the way: a sentence around the exchanges that it is true of.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conflict {
    before: String,
    /// What follows the exchanges; `None` if they are not named.
    after: Option<String>,
}

impl Conflict {
    fn of_all(text: String) -> Self {
        Self { before: text, after: None }
    }
}

/// What is in the way, each thing once, with its exchanges.
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

/// The policies that these exchanges need, beside those that stand.
pub(super) fn plan(
    layout: &Layout,
    exchanges: &[&ExchangeInfo],
    user: &[Policy],
    operator: &[Policy],
) -> Plan {
    let mut plan = Plan::default();
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

/// The policy of somebody else that applies to an exchange, or why that cannot be told.
fn standing<'a>(layout: &Layout, exchange: &str, user: &'a [Policy]) -> Result<Option<&'a Policy>, Conflict> {
    let mut matching = Vec::new();
    for policy in user.iter().filter(|policy| !is_ours(layout, policy)) {
        match is_for(policy, exchange) {
            Some(true) => matching.push(policy),
            Some(false) => {}
            None => {
                return Err(Conflict::of_all(format!(
                    "the pattern of policy `{}`, `{}`, cannot be read here, so nobody can tell whether it is \
                     for the exchanges of this layout. Write it more simply, or have it apply to queues only",
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

/// What an exchange has that a policy of ours would not change.
fn in_the_way(layout: &Layout, exchange: &ExchangeInfo, operator: &[Policy]) -> Option<Conflict> {
    let name = &exchange.name;
    if let Some(argument) = exchange.arguments.get(KEY)
        && argument.as_str() != Some(&layout.kept())
    {
        return Some(Conflict {
            before: format!(
                "the alternate exchange `{}` was declared with ",
                argument.as_str().unwrap_or("?")
            ),
            after: Some(
                ", and counts for more than any policy: what is not routed goes there already".into(),
            ),
        });
    }
    let sets = |policy: &&Policy| policy.definition.contains_key(KEY) && is_for(policy, name) != Some(false);
    let policy = operator.iter().find(sets)?;
    Some(Conflict::of_all(format!(
        "the operator policy `{}` sets an alternate exchange, which counts for more",
        policy.name
    )))
}

/// Whether a standing policy leads elsewhere.
fn other(layout: &Layout, policy: &Policy) -> Option<Conflict> {
    let alternate = policy.definition.get(KEY)?.as_str().unwrap_or("?");
    (alternate != layout.kept()).then(|| Conflict {
        before: format!("policy `{}` gives the alternate exchange `{alternate}` already to ", policy.name),
        after: Some(format!(
            ": what nobody is bound for goes there and stalls nothing. To have this guard instead, take `{KEY}` \
             out of that policy"
        )),
    })
}

/// Our policy for exactly these exchanges: all that the standing one says, and the alternate
/// exchange.
fn ours(layout: &Layout, standing: Option<&Policy>, exchanges: &[String]) -> Policy {
    let names: Vec<_> = exchanges.iter().map(|name| regex::escape(name)).collect();
    let mut definition = standing.map(|policy| policy.definition.clone()).unwrap_or_default();
    definition.insert(KEY.into(), Json::from(layout.kept()));
    Policy {
        name: standing.map_or_else(|| name(layout), |policy| format!("{}+{}", name(layout), policy.name)),
        pattern: format!("^(?:{})$", names.join("|")),
        apply_to: "exchanges".into(),
        definition,
        priority: standing.map_or(0, |policy| policy.priority.saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::Observed;

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

    fn planned(user: &[Policy], operator: &[Policy]) -> Plan {
        let layout = Layout::nservicebus();
        let exchanges = exchanges(&layout);
        plan(&layout, &exchanges.iter().collect::<Vec<_>>(), user, operator)
    }

    #[test]
    fn alone_it_is_one_policy_for_exactly_these_exchanges() {
        let plan = planned(&[policy("queues", ".*", "queues", 5, json!({"max-length": 1}))], &[]);
        let [(policy, covered)] = &plan.wanted[..] else { panic!("{plan:#?}") };
        assert_eq!((covered.exchanges.len(), &covered.merged_with), (29, &None));
        assert_eq!(policy.definition, [(KEY.to_owned(), "delayline.guard.nservicebus".into())].into());
        let pattern = regex::Regex::new(&policy.pattern).unwrap();
        assert!(pattern.is_match("nsb.v2.delay-level-00") && pattern.is_match("nsb.v2.delay-delivery"));
        for other in ["nsb.v2.delay-level-000", "nsbxv2.delay-level-00", "nsb.v2.delay-level-28", "Sales"] {
            assert!(!pattern.is_match(other), "{other}");
        }
        assert!(plan.conflicts.is_empty() && plan.obsolete.is_empty());
    }

    #[test]
    fn a_policy_that_stands_is_merged_and_stays() {
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
        // The same again with ours in place; and once theirs is gone, ours follows.
        let mut both = standing.to_vec();
        both.extend(plan.wanted.iter().map(|(policy, _)| policy.clone()));
        assert_eq!(planned(&both, &[]).wanted, plan.wanted);
        both.retain(|policy| policy.name != "own");
        assert_eq!(planned(&both, &[]).obsolete, ["delayline-guard-nservicebus+own"]);
    }

    #[test]
    fn a_guard_is_stale_once_what_it_repeats_has_changed() {
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
        assert!(said.len() == 1 && said[0].contains("what policy `theirs` says now"), "{said:?}");
        let said = stale(&merged);
        assert!(
            said.iter().any(|text| text.contains("`delayline-guard-nservicebus+theirs` repeats")),
            "{said:?}"
        );
        assert!(said.iter().any(|text| text.contains("the 29 exchanges")), "{said:?}");
        let said = stale(&with(theirs(1), &ours(&[])));
        assert!(said.iter().any(|text| text.contains("nothing repeats what it says")), "{said:?}");
        let observed = Observed { exchanges: exchanges(&layout), ..Observed::default() };
        assert!(crate::guard::stale(&layout, &observed, &[theirs(1)]).is_empty(), "there is no guard");
        assert_eq!(crate::guard::stale(&layout, &observed, &with(theirs(2), &merged)).len(), 1);
    }

    #[test]
    fn what_leads_elsewhere_already_is_a_conflict() {
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
        // The same of several is said once.
        let said = planned(&[policy("theirs", ".", "all", 0, aside)], &[]).conflicts;
        assert!(said.len() == 1 && said[0].contains(" and 28 others: "), "{said:?}");
    }

    #[test]
    fn what_cannot_be_told_is_a_conflict() {
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
