//! The files a private node starts with.

use std::{fs, io, path::Path};

use super::{NodeError, PrivateNode};

/// Writes them into the node's directory.
pub(super) fn write(node: &PrivateNode) -> Result<(), NodeError> {
    let failed = |source| NodeError::Io { what: "write the node's configuration", source };
    let mut plugins = node.options.plugins.clone();
    if !node.options.without_management {
        plugins.push("rabbitmq_management".into());
    }
    file(&node.path("enabled_plugins"), &format!("[{}].\n", plugins.join(","))).map_err(failed)?;
    file(&node.path("advanced.config"), "[].\n").map_err(failed)?;
    file(&node.path("rabbitmq.conf"), &rabbitmq_conf(node)).map_err(failed)
}

fn file(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
}

fn rabbitmq_conf(node: &PrivateNode) -> String {
    let mut conf = format!(
        "listeners.tcp.1 = 127.0.0.1:{}\n\
         log.console = false\n\
         log.file.level = warning\n\
         disk_free_limit.absolute = 50MB\n",
        node.ports.amqp,
    );
    if !node.options.without_management {
        conf += &format!(
            "management.tcp.ip = 127.0.0.1\n\
             management.tcp.port = {}\n\
             collect_statistics_interval = 1000\n",
            node.ports.management,
        );
    }
    if let Some(tls) = &node.options.tls {
        conf += &format!(
            "listeners.ssl.1 = 127.0.0.1:{}\n\
             ssl_options.cacertfile = {}\n\
             ssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\n\
             ssl_options.verify = {}\n\
             ssl_options.fail_if_no_peer_cert = {}\n",
            node.ports.tls,
            tls.ca_file.display(),
            tls.cert_file.display(),
            tls.key_file.display(),
            if tls.require_client_cert { "verify_peer" } else { "verify_none" },
            tls.require_client_cert,
        );
    }
    conf + &node.options.config
}
