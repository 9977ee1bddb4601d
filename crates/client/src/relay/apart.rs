//! A separate connection for successors over which a broker may crash.
//!
//! A stream may be bound to any exchange, as an application's journal is. The broker crashes over
//! some messages when it stores them there, and closes the publishing connection with everything in
//! flight. On a separate connection, such messages affect only each other.

use std::{collections::HashSet, time::Duration};

use crossbeam_channel::Select;

use crate::router::{Outcome, Pipeline, Router, RouterBuilder};
use delayline_amqp::Delivery;
use delayline_core::{Message, codec::AppKey, message::crashes_streams};

/// The connection for such successors.
pub(super) struct Apart {
    builder: RouterBuilder,
    /// The connection is opened for the first of them.
    opened: Option<(Router, Pipeline<Delivery>)>,
    /// The applications over whose messages the broker crashed.
    crashed: HashSet<AppKey>,
}

impl Apart {
    pub(super) fn new(builder: RouterBuilder) -> Self {
        Self { builder, opened: None, crashed: HashSet::new() }
    }

    /// Whether a message is published on this connection.
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
        let Self { builder, opened, .. } = self;
        let open = || {
            let router = builder.clone().connect_later();
            let pipeline = router.pipeline();
            (router, pipeline)
        };
        opened.get_or_insert_with(open).1.push(delivery, successor)
    }

    pub(super) fn try_next(&mut self) -> Option<Outcome<Delivery>> {
        self.opened.as_mut()?.1.try_next()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.opened.as_ref().map_or(0, |(_, pipeline)| pipeline.in_flight())
    }

    pub(super) fn watch<'s>(&'s self, select: &mut Select<'s>) {
        if let Some((_, pipeline)) = &self.opened {
            pipeline.watch(select);
        }
    }

    /// Closes the connection, if there is one. Returns whether everything was confirmed.
    pub(super) fn close(&self, limit: Duration) -> bool {
        self.opened.as_ref().is_none_or(|(router, _)| router.close(limit).is_ok())
    }
}
