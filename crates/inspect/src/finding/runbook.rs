//! The pages of the runbook, one for each class of failure.

use super::FindingCode;

/// A page: its path in the repository, and its text.
type Page = (&'static str, &'static str);

macro_rules! pages {
    ($($id:ident $name:literal;)*) => {
        $(const $id: Page = (
            concat!("docs/runbook/", $name, ".md"),
            include_str!(concat!("../../../../docs/runbook/", $name, ".md")),
        );)*
    };
}

pages! {
    STUCK "stuck";
    DESTINATIONS "destinations";
    HELD "held";
    LATE "late";
    BROKER "broker";
    SET "set";
    RECALL "recall";
    SCHEDULES "schedules";
    GATEWAYS "gateways";
    LAYOUTS "layouts";
}

impl FindingCode {
    /// The page of the documentation that explains it, such as `docs/runbook/stuck.md`.
    #[must_use]
    pub const fn page(self) -> &'static str {
        self.explained().0
    }

    /// Its section of that page: what it means, and what to do.
    #[must_use]
    pub fn section(self) -> &'static str {
        let text = self.explained().1;
        let title = format!("\n## {self} ({})\n", self.severity());
        let below = text.find(&title).map_or("", |at| &text[at + 1..]);
        below.find("\n## ").map_or(below, |end| &below[..end]).trim_end()
    }

    const fn explained(self) -> Page {
        match self {
            Self::StuckDeadLetters | Self::DeadLetteringEnded | Self::PolicyLeftBehind => STUCK,
            Self::TargetRefuses
            | Self::TargetCanRefuse
            | Self::TargetDeadEnd
            | Self::TargetStream
            | Self::TargetLoop
            | Self::TargetClassic
            | Self::TargetTransient
            | Self::AppUnbound
            | Self::AppPaused
            | Self::BindingCollision
            | Self::WildcardBinding
            | Self::NobodyConsumes
            | Self::HotLoop => DESTINATIONS,
            Self::NobodyBound
            | Self::MalformedMessages
            | Self::UnroutableWaiting
            | Self::UnroutableGrowing => HELD,
            Self::MultipliedMessages | Self::DeadLetterPrefetch | Self::ShortcutsSaveHops => LATE,
            Self::NoMajority
            | Self::NoLeader
            | Self::ReplicaOffline
            | Self::TooFewReplicas
            | Self::BrokerAlarm
            | Self::BrokerUnsuitable
            | Self::StatisticsOff
            | Self::SmallFrames
            | Self::FeatureFlagOff
            | Self::DeprecatedFeature
            | Self::DeliveryTimeHeader => BROKER,
            Self::SetDiffers
            | Self::NameClash
            | Self::PolicyOnSet
            | Self::EntryUnprotected
            | Self::DispatchUnprotected
            | Self::DispatchWritable
            | Self::SetUnprotected
            | Self::UntrustedTenants => SET,
            Self::RecallsOverQuota
            | Self::RecallsNearQuota
            | Self::RecallsNotSwept
            | Self::RecalledFull
            | Self::JournalLost
            | Self::JournalRefuses
            | Self::JournalMissing
            | Self::JournalTooShort
            | Self::JournalLimited
            | Self::JournalUnindexed => RECALL,
            Self::SchedulesUnserved | Self::ScheduleStalled | Self::ScheduleUnbound | Self::ScheduleEnded => {
                SCHEDULES
            }
            Self::GatewayBroken | Self::GatewayBypassed | Self::GatewayUnserved | Self::GatewayUnbound => {
                GATEWAYS
            }
            Self::Unguarded | Self::GuardStale => LAYOUTS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_section_that_shows_what_to_do() {
        for code in FindingCode::ALL {
            let section = code.section();
            assert!(section.contains("**To do:**"), "{} has no remedy for {code}: {section}", code.page());
        }
    }

    #[test]
    fn every_section_with_a_severity_belongs_to_a_code() {
        let pages = [STUCK, DESTINATIONS, HELD, LATE, BROKER, SET, RECALL, SCHEDULES, GATEWAYS, LAYOUTS];
        let titles =
            pages.iter().flat_map(|(_, text)| text.lines()).filter_map(|line| line.strip_prefix("## "));
        let found = titles.filter(|title| title.ends_with(" (problem)") || title.ends_with(" (advice)"));
        assert_eq!(found.count(), FindingCode::ALL.len());
    }
}
