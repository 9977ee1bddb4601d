//! The tests that need no broker: properties of the pure core, the map of the rooms, and the
//! release script.

#[path = "properties/main.rs"]
mod properties;
#[path = "rooms/main.rs"]
mod rooms;
#[path = "scripts.rs"]
mod scripts;
