//! The bindings of a vhost.

use super::{
    BindingInfo, ManagementApi, ManagementError,
    client::{properties_key, segment},
};
use delayline_core::topology::{Binding, Endpoint};
use serde_json::Value as Json;

/// The first version that is known to stream definitions. Earlier ones look up each binding's queue in a list of all
/// queues, and leave out bindings to exclusive queues.
const STREAMS: [u32; 3] = [4, 3, 6];

/// The fields of a binding that are read. With all, an answer is twice as long.
const ENDS: &str = "source,destination,destination_type,routing_key,arguments";

impl ManagementApi {
    /// The bindings of a vhost that `keep` selects. The others are dropped as they arrive.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings(
        &self,
        vhost: &str,
        keep: impl Fn(&BindingInfo) -> bool,
    ) -> Result<Vec<BindingInfo>, ManagementError> {
        self.kept(&format!("bindings/{}?columns={ENDS}", segment(vhost)), None, keep)
    }

    /// The same from a broker that searches all bindings for each list of some. From 4.3.6 on, it lists them in
    /// an eighth of the time as definitions, except for users without the tag `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn searched_bindings(
        &self,
        vhost: &str,
        keep: impl Fn(&BindingInfo) -> bool,
    ) -> Result<Vec<BindingInfo>, ManagementError> {
        if self.overview().is_ok_and(|broker| broker.version() >= STREAMS) {
            match self.kept(&format!("definitions/{}", segment(vhost)), Some("bindings"), &keep) {
                Err(ManagementError::Refused { .. }) => {}
                read => return read,
            }
        }
        self.bindings(vhost, keep)
    }

    /// The bindings of a list, or of the list in a field of an object, that `keep` selects.
    fn kept(
        &self,
        path: &str,
        field: Option<&str>,
        keep: impl Fn(&BindingInfo) -> bool,
    ) -> Result<Vec<BindingInfo>, ManagementError> {
        let mut bindings = Vec::new();
        self.each(path, field, |binding| {
            if keep(&binding) {
                bindings.push(binding);
            }
        })?;
        Ok(bindings)
    }

    /// The keys and arguments of the bindings from an exchange of a vhost to a queue, one by one,
    /// since there may be very many; none if either is missing. With all columns, a broker takes
    /// several times the memory and the time (100,000 bindings: 1.4 GB and 400 MB more on 3.10.8).
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn each_binding_between(
        &self,
        vhost: &str,
        exchange: &str,
        queue: &str,
        each: impl FnMut(BindingInfo),
    ) -> Result<(), ManagementError> {
        let (vhost, exchange, queue) = (segment(vhost), segment(exchange), segment(queue));
        self.each(
            &format!("bindings/{vhost}/e/{exchange}/q/{queue}?columns=routing_key,arguments"),
            None,
            each,
        )
    }

    /// The bindings from an exchange of a vhost; none if there is no such exchange.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings_from(&self, vhost: &str, exchange: &str) -> Result<Vec<BindingInfo>, ManagementError> {
        let path =
            format!("exchanges/{}/{}/bindings/source?columns={ENDS}", segment(vhost), segment(exchange));
        self.kept(&path, None, |_| true)
    }

    /// The bindings to an exchange or queue of a vhost; none if it is missing.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings_to(&self, vhost: &str, end: &Endpoint) -> Result<Vec<BindingInfo>, ManagementError> {
        let (vhost, name) = (segment(vhost), segment(end.name()));
        let path = match end {
            Endpoint::Exchange(_) => format!("exchanges/{vhost}/{name}/bindings/destination?columns={ENDS}"),
            Endpoint::Queue(_) => format!("queues/{vhost}/{name}/bindings?columns={ENDS}"),
        };
        self.kept(&path, None, |_| true)
    }

    /// The bindings from one exchange of a vhost to another; none if either is missing.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings_between(
        &self,
        vhost: &str,
        source: &str,
        destination: &str,
    ) -> Result<Vec<BindingInfo>, ManagementError> {
        let (vhost, source, destination) = (segment(vhost), segment(source), segment(destination));
        Ok(self.find(&format!("bindings/{vhost}/e/{source}/e/{destination}"))?.unwrap_or_default())
    }

    /// Whether there is this binding, without arguments.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn has_binding(&self, vhost: &str, binding: &Binding) -> Result<bool, ManagementError> {
        let (kind, destination) = match &binding.destination {
            Endpoint::Exchange(name) => ("e", name),
            Endpoint::Queue(name) => ("q", name),
        };
        let path = format!(
            "bindings/{}/e/{}/{kind}/{}/{}",
            segment(vhost),
            segment(&binding.source),
            segment(destination),
            segment(&properties_key(&binding.key))
        );
        Ok(self.find::<Json>(&path)?.is_some())
    }
}
