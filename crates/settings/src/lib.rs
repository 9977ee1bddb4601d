//! The broker, the credentials and the set.
//!
//! Two stages: [`Layers`] collects typed values (defaults, then `delayline.toml`, then
//! `DELAYLINE_*`, then flags). [`Settings`] is their checked form, which all other code uses.

mod check;
mod daemon;
mod error;
mod layers;
mod layout;
mod policies;
mod raw;
mod settings;
mod text;
mod urls;

pub use daemon::{CanarySettings, IndexSettings, WebSettings};
pub use error::SettingsError;
pub use layers::Layers;
pub use layout::{ForeignKey, ForeignKeyError, Layout, LayoutError};
pub use policies::{PoliciesError, load_policies, parse_policies, policies_of};
#[doc(hidden)]
pub use raw::parse;
pub use raw::variables;
pub use settings::{Management, NO_MANAGEMENT, RouterSettings, Settings};
pub use text::{read_bytes, read_text};
