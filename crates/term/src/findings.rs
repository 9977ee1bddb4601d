//! Findings for people: the problem, and what to do.

use owo_colors::OwoColorize;

use delayline_admin::{Finding, Severity, named};

use crate::{failure::Failure, output::Output, text::readable};

/// Prints findings; with `-v`, every place of each.
pub fn show(findings: &[Finding], output: &mut Output) -> Result<(), Failure> {
    for same in alike(findings) {
        let finding = same[0];
        let sign = match finding.severity {
            Severity::Problem => "✗".red().to_string(),
            Severity::Advice => "!".yellow().to_string(),
            Severity::Info => "i".dimmed().to_string(),
        };
        output.line(format!("{sign} {}  {}", finding.code.bold(), readable(&finding.subject)))?;
        output.line(format!("    {}", readable(&finding.what)))?;
        if let [_, others @ ..] = same.as_slice()
            && !others.is_empty()
        {
            let subjects = others.iter().map(|other| readable(&other.subject));
            let shown =
                if output.details { subjects.collect::<Vec<_>>().join(", ") } else { named(subjects) };
            output.line(format!("    the same: {shown}"))?;
        }
        let details = if output.details { finding.details.as_slice() } else { &[] };
        for detail in details {
            output.line(format!("    - {}", readable(detail)))?;
        }
        output.line(format!("    {} {}", "to do:".dimmed(), readable(&finding.advice)))?;
    }
    Ok(())
}

/// Prints what could not be checked, and why.
pub fn unchecked(reasons: &[String], output: &mut Output) -> Result<(), Failure> {
    for reason in reasons {
        output.line(format!("{} not checked: {}", "?".yellow(), readable(reason)))?;
    }
    Ok(())
}

/// Prints what may become a fault.
pub fn warnings(warnings: &[String], output: &mut Output) -> Result<(), Failure> {
    for warning in warnings {
        output.line(format!("{} {}", "warning:".yellow().bold(), readable(warning)))?;
    }
    Ok(())
}

/// Groups findings that differ only in their subject: a policy can apply to all 28 levels.
fn alike(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        let same = |group: &&mut Vec<&Finding>| {
            let first = group[0];
            (first.code, &first.what, &first.advice) == (finding.code, &finding.what, &finding.advice)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}
