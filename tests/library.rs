//! What is tested without a broker: properties of the pure core, and the map of the rooms.

#[path = "properties/main.rs"]
mod properties;
#[path = "rooms/main.rs"]
mod rooms;
