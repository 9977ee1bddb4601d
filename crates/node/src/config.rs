//! The files a private node starts with.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::{options::NodeOptions, spot::Spot};

/// Writes the files into the node's directory.
pub(super) fn write(directory: &Path, options: &NodeOptions, spot: &Spot) -> io::Result<()> {
    let mut plugins = options.plugins.clone();
    if !options.without_management {
        plugins.push("rabbitmq_management".into());
    }
    fs::write(directory.join("enabled_plugins"), format!("[{}].\n", plugins.join(",")))?;
    fs::write(directory.join("advanced.config"), advanced_config(options))?;
    fs::write(directory.join("rabbitmq.conf"), rabbitmq_conf(options, spot))?;
    // Erlang accepts a cookie only from a file that no other user can read.
    let mut cookie =
        OpenOptions::new().write(true).create_new(true).mode(0o400).open(directory.join(".erlang.cookie"))?;
    cookie.write_all(spot.cookie.as_bytes())
}

fn advanced_config(options: &NodeOptions) -> String {
    format!("[{{rabbit, [{}]}}].\n", options.rabbit.join(", "))
}

fn rabbitmq_conf(options: &NodeOptions, spot: &Spot) -> String {
    let Spot { address, ports, peers, cluster, .. } = spot;
    let mut conf = format!(
        "cluster_name = {cluster}\n\
         listeners.tcp.1 = {address}:{}\n\
         log.console = false\n\
         log.file.level = warning\n\
         disk_free_limit.absolute = 50MB\n",
        ports.amqp,
    );
    if !address.is_loopback() {
        // Only this machine can reach this address, but not from the loopback address.
        conf += "loopback_users = none\n";
    }
    if !peers.is_empty() {
        conf += "cluster_formation.peer_discovery_backend = classic_config\n";
        for (number, peer) in peers.iter().enumerate() {
            conf += &format!("cluster_formation.classic_config.nodes.{} = {peer}\n", number + 1);
        }
    }
    if !options.without_management {
        conf += &format!(
            "management.tcp.ip = {address}\n\
             management.tcp.port = {}\n\
             collect_statistics_interval = 1000\n",
            ports.management,
        );
    }
    if let Some(tls) = &options.tls {
        conf += &format!(
            "listeners.ssl.1 = {address}:{}\n\
             ssl_options.cacertfile = {}\n\
             ssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\n\
             ssl_options.verify = {}\n\
             ssl_options.fail_if_no_peer_cert = {}\n",
            ports.tls,
            tls.ca_file.display(),
            tls.cert_file.display(),
            tls.key_file.display(),
            if tls.require_client_cert { "verify_peer" } else { "verify_none" },
            tls.require_client_cert,
        );
    }
    conf + &options.config
}
