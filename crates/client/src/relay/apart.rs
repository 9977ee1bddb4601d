//! A connection apart for successors over which a broker may crash.
//!
//! A stream may be bound to any exchange, as the journal of an application is. The broker
//! crashes over some messages that it should store there, and closes the connection on which
//! they were published, with everything in flight. On a connection of their own they harm only
//! each other.

use std::{cell::OnceCell, collections::HashSet};

use crossbeam_channel::Select;

use crate::{
    Router,
    router::{Outcome, Pipeline, RouterBuilder},
};
use delayline_amqp::Delivery;
use delayline_core::{Message, codec::AppKey, message::crashes_streams};

/// Where such successors are published. There is no connection until the first of them.
pub(super) struct Apart<'r> {
    builder: RouterBuilder,
    router: &'r OnceCell<Router>,
    pipeline: Option<Pipeline<'r, Delivery>>,
    /// The applications over whose messages the broker crashed.
    crashed: HashSet<AppKey>,
}

impl<'r> Apart<'r> {
    pub(super) fn new(builder: RouterBuilder, router: &'r OnceCell<Router>) -> Self {
        Self { builder, router, pipeline: None, crashed: HashSet::new() }
    }

    /// Whether a message goes this way.
    pub(super) fn takes(message: &Message) -> bool {
        crashes_streams(&message.properties, &message.headers).is_some()
    }

    /// Whether the broker has crashed over such a message of its application.
    pub(super) fn has_crashed(&self, message: &Message) -> bool {
        self.crashed.contains(&message.app)
    }

    /// Records that the broker crashed over a message of an application.
    pub(super) fn crashed(&mut self, app: &AppKey) {
        self.crashed.insert(app.clone());
    }

    pub(super) fn push(&mut self, delivery: Delivery, successor: Message) -> Option<Outcome<Delivery>> {
        let Self { builder, router, pipeline, .. } = self;
        let connected = || router.get_or_init(|| builder.clone().connect_later()).pipeline();
        pipeline.get_or_insert_with(connected).push(delivery, successor)
    }

    pub(super) fn try_next(&mut self) -> Option<Outcome<Delivery>> {
        self.pipeline.as_mut()?.try_next()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.pipeline.as_ref().map_or(0, Pipeline::in_flight)
    }

    pub(super) fn watch<'s>(&'s self, select: &mut Select<'s>) {
        if let Some(pipeline) = &self.pipeline {
            pipeline.watch(select);
        }
    }
}
