//! Checks of recalls, journals and recurring schedules.

pub(super) mod journals;
pub(super) mod recalls;
pub(super) mod schedules;
