//! Certificates and keys for TLS, for the AMQP and the HTTP side alike.
//!
//! There is no way to switch the verification of certificates or host names
//! off.

use std::{fs, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::settings::Tls;

/// Why TLS cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TLS: {0}")]
pub(crate) struct TlsError(String);

/// What was read from the files of the settings.
pub(crate) struct Material {
    pub(crate) roots: Vec<CertificateDer<'static>>,
    pub(crate) client: Option<Client>,
}

/// A client certificate with its chain, and its key in PEM form.
pub(crate) struct Client {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Vec<u8>,
}

impl Material {
    /// Reads the files; without a CA file, the system's authorities.
    pub(crate) fn load(tls: &Tls) -> Result<Self, TlsError> {
        let roots = match &tls.ca_file {
            Some(file) => certificates(file)?,
            None => system_roots()?,
        };
        let client = match &tls.client {
            Some((chain, key)) => Some(Client { chain: certificates(chain)?, key: private_key(key)? }),
            None => None,
        };
        Ok(Self { roots, client })
    }

    /// A rustls configuration that trusts just these roots.
    pub(crate) fn client_config(self) -> Result<ClientConfig, TlsError> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(self.roots);
        if added == 0 {
            return Err(TlsError("there is no usable certificate authority to trust".into()));
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(error.to_string()))?
            .with_root_certificates(store);
        match self.client {
            Some(Client { chain, key }) => {
                let unusable = |error: &dyn ToString| {
                    TlsError(format!("the client certificate cannot be used: {}", error.to_string()))
                };
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unusable(&error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| unusable(&error))
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

/// The cryptography used everywhere, named explicitly so that another crate in
/// an application's tree cannot change it.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |reason: String| TlsError(format!("{}: {reason}", file.display()));
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| failed(error.to_string()))?;
    if found.is_empty() {
        return Err(failed("it holds no certificate in PEM form".into()));
    }
    Ok(found)
}

/// The key as it stands in the file, once it is known to be one.
fn private_key(file: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |reason: &dyn ToString| TlsError(format!("{}: {}", file.display(), reason.to_string()));
    let pem = fs::read(file).map_err(|error| failed(&error))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| failed(&error))?;
    Ok(pem)
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reasons: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(TlsError(format!(
            "no certificate authorities found on this system; name one with ca_file {}",
            reasons.join("; ")
        )));
    }
    Ok(found.certs)
}
