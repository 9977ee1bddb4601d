//! Operations of a platform team on a set: install, verify, inspect, remove.
//!
//! Each function works on a `Topology` and a broker, and returns
//! plain data for the command line or any other caller to show.

pub use delayline_inspect::*;
pub use delayline_messages::{
    drain,
    error::{AdminError, JournalUnread},
    examine::{Conflict, ObjectState},
    held::*,
    number::{counted, counted_if_known, grouped, known, named},
    scheduled::*,
    unstick::{Occupied, TouchedQueue, Unstick, UnstickOptions, UnstickReport, unstick},
};
pub use delayline_provision::*;
pub use delayline_settings::{ForeignKey, ForeignKeyError, Layout, LayoutError};
