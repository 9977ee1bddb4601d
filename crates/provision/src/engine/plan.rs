//! Plans, made before anything is changed.

use delayline_amqp::Session;
use delayline_broker::Snapshot;
use delayline_core::topology::Binding;
use serde::Serialize;

use super::{step::Found, step::Hands, step::Step};
use delayline_messages::error::AdminError;

/// How far an installation, or the registration of an application, went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Applied {
    /// The set is installed.
    Installed,
    /// Nothing was changed, because everything is there already.
    Unchanged,
    /// Nothing was changed, as asked.
    DryRun,
    /// Nothing was changed, because the broker cannot carry a set.
    Unsuitable,
    /// Nothing was changed, because something else is in the way.
    Conflict,
    /// Nothing was changed, because a set of an earlier version is installed.
    EarlierVersion,
}

/// A part of a gateway or an application.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AddedStep {
    /// The queue, binding, user or permission, in words.
    pub what: String,
    /// Whether it was there already.
    pub stood: bool,
    /// The old value that it replaces, if it had another value.
    pub replaces: Option<String>,
}

/// Steps, in the order in which they are made, and the state of each on the broker.
#[derive(Debug, Default)]
pub(crate) struct Plan(pub(crate) Vec<(Step, Found)>);

impl Plan {
    /// Examines the state of each step, and changes nothing. `judge` may replace the result.
    pub(crate) fn examine(
        steps: impl IntoIterator<Item = Step>,
        snapshot: Option<&Snapshot>,
        session: &mut Session,
        is_ours: impl Fn(&Binding) -> bool,
        mut judge: impl FnMut(&Step, Found) -> Result<Found, AdminError>,
    ) -> Result<Self, AdminError> {
        let examined = steps.into_iter().map(|step| {
            let found = step.examine(snapshot, session, &is_ours)?;
            let found = judge(&step, found)?;
            Ok((step, found))
        });
        examined.collect::<Result<_, AdminError>>().map(Self)
    }

    /// The conflicts. If there are any, nothing may be changed.
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(_, found)| found.in_the_way())
    }

    /// How far the plan goes, apart from conflicts of the plan as a whole.
    pub(crate) fn outcome(&self, dry_run: bool) -> Applied {
        match dry_run {
            _ if self.conflicts().next().is_some() => Applied::Conflict,
            _ if !self.0.iter().any(|(_, found)| found.is_open()) => Applied::Unchanged,
            true => Applied::DryRun,
            false => Applied::Installed,
        }
    }

    /// The parts, for a report.
    pub(crate) fn steps(&self) -> impl Iterator<Item = AddedStep> {
        self.0.iter().map(|(step, found)| AddedStep {
            what: step.to_string(),
            stood: !found.is_open(),
            replaces: match found {
                Found::Replaced(what) => Some(what.clone()),
                _ => None,
            },
        })
    }

    /// Makes the missing parts. `made` is called after each step.
    ///
    /// # Errors If the broker refuses or is lost. The error names the parts that were made until then, which
    /// stay, and the `next` command.
    pub(crate) fn apply(
        &self,
        hands: &mut Hands<'_>,
        next: &str,
        mut made: impl FnMut(&Step),
    ) -> Result<(), AdminError> {
        let mut done = Vec::new();
        for (step, found) in self.0.iter().filter(|(_, found)| found.is_open()) {
            if let Err(error) = hands.make(step) {
                return Err(error.after(done, next));
            }
            // Of others it is unknown whether they were there before.
            done.extend((*found != Found::Unknown).then(|| step.to_string()));
            made(step);
        }
        Ok(())
    }
}
