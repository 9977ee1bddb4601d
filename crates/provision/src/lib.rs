//! Plans, and changes to a vhost: install, applications, platform files, guards and gateways.

pub mod keeper;
pub mod provision;
