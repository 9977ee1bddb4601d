//! `docs/benchmarks.md` and its charts.

use std::path::{Path, PathBuf};

use super::{Fallible, results::Run};

pub fn write(_runs: &[Run], _docs: &Path) -> Fallible<Vec<PathBuf>> {
    Ok(Vec::new())
}
