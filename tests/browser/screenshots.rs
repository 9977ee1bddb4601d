//! Pictures for the documentation: see scripts/screenshots.
