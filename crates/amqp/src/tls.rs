//! Certificates and keys for TLS, for both AMQP and HTTP.
//!
//! Certificates and host names are always verified.

use std::{error::Error, fmt, fs, io, path::Path, sync::Arc};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
};

use crate::broker::Tls;

/// Why TLS cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TLS: {0}")]
pub struct TlsError(String);

/// The meaning of a failed handshake with a host, and what to do. `None` if the failure was not
/// about TLS.
pub fn explained(error: &(dyn Error + 'static), host: &str) -> Option<String> {
    let text = match library_error(error)? {
        rustls::Error::InvalidMessage(_) => {
            "the server there does not speak TLS: use the broker's TLS port (5671; 15671 for the management \
             API), or a URL without TLS (amqp://, http://)"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(wrong) => certificate(wrong, host),
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        ) => "it ended the handshake: it may require a client certificate (client_cert_file and \
             client_key_file), or share no TLS version or cipher with this client"
            .to_owned(),
        rustls::Error::AlertReceived(alert) => format!(
            "it ended the handshake ({alert:?}): it may not accept the client certificate (client_cert_file)"
        ),
        _ => return None,
    };
    Some(text)
}

fn certificate(wrong: &CertificateError, host: &str) -> String {
    match wrong {
        CertificateError::UnknownIssuer => {
            "its certificate is not signed by a trusted authority: give the PEM file of its authority with \
             ca_file (--ca-file)"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("its certificate is not for `{host}`: use a host name that it contains, or renew it")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: renew it on the broker".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: check the clocks of both machines".into()
        }
        CertificateError::Revoked => "its certificate was revoked: renew it on the broker".into(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not made for servers: give the broker a server certificate".into()
        }
        // The library has no variant for this error.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority, for example self-signed: give the broker a certificate \
             that the authority has signed, and the authority's to ca_file (--ca-file)"
                .into()
        }
        other => format!("its certificate cannot be trusted ({other}): give the broker another one"),
    }
}

/// The TLS library's own error, wherever it is wrapped.
fn library_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // An I/O error does not report the error inside it as its source.
        if let Some(wrapped) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            let wrapped: &(dyn Error + 'static) = wrapped;
            if let Some(found) = library_error(wrapped) {
                return Some(found);
            }
        }
        next = error.source();
    }
    None
}

/// The contents of the files.
#[derive(Debug)]
#[non_exhaustive]
pub struct Material {
    /// The authorities to trust.
    pub roots: Vec<CertificateDer<'static>>,
    /// The certificate to present if the broker asks for one.
    pub client: Option<Client>,
}

/// A client certificate with its chain, and its key in PEM form.
#[non_exhaustive]
pub struct Client {
    /// The certificate, and the chain to its authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: Vec<u8>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Material {
    /// Reads the files. Without a CA file, reads the system's authorities.
    pub fn load(tls: &Tls) -> Result<Self, TlsError> {
        let roots = match &tls.ca_file {
            Some(file) => certificates("ca_file", file)?,
            None => system_roots()?,
        };
        let client = match &tls.client {
            Some((chain, key)) => Some(Client {
                chain: certificates("client_cert_file", chain)?,
                key: private_key("client_key_file", key)?,
            }),
            None => None,
        };
        Ok(Self { roots, client })
    }

    /// A rustls configuration that trusts only these roots.
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

/// The cryptography used everywhere. It is named explicitly, so that another crate in an
/// application's tree cannot change it.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The fault in a setting's file.
fn failed(setting: &str, file: &Path, reason: impl fmt::Display) -> TlsError {
    TlsError(format!("{setting} {}: {reason}", file.display()))
}

/// The contents of a file. Standard input is no file: it cannot be read again for the next connection.
fn pem(setting: &str, file: &Path) -> Result<Vec<u8>, TlsError> {
    if file == Path::new("-") {
        return Err(failed(setting, file, "it is read again for each connection; give the name of a file"));
    }
    fs::read(file).map_err(|error| failed(setting, file, error))
}

fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = pem(setting, file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(failed(setting, file, "it contains no certificate in PEM form")),
        found => found.map_err(|error| failed(setting, file, error)),
    }
}

/// The key as the file has it, after a check that it is a key.
fn private_key(setting: &str, file: &Path) -> Result<Vec<u8>, TlsError> {
    let pem = pem(setting, file)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| failed(setting, file, error))?;
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

#[cfg(test)]
mod tests {
    use rustls::{InvalidMessage, OtherError};

    use super::*;

    /// As rustls' verifier names it.
    #[derive(Debug, thiserror::Error)]
    #[error("CaUsedAsEndEntity")]
    struct CaUsedAsEndEntity;

    #[test]
    fn errors_of_the_library_are_explained_with_a_remedy() {
        let said = |error: rustls::Error| {
            // As the socket reports it, and unwrapped.
            let wrapped = io::Error::new(io::ErrorKind::InvalidData, error.clone());
            let text = explained(&wrapped, "broker.example").unwrap();
            assert_eq!(explained(&error, "broker.example").as_ref(), Some(&text));
            text
        };
        for (error, words) in [
            (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), "does not speak TLS: use"),
            (CertificateError::UnknownIssuer.into(), "ca_file"),
            (CertificateError::NotValidForName.into(), "not for `broker.example`"),
            (CertificateError::Expired.into(), "renew it"),
            (CertificateError::NotValidYet.into(), "clocks"),
            (
                CertificateError::Other(OtherError(Arc::new(CaUsedAsEndEntity))).into(),
                "to ca_file (--ca-file)",
            ),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "client_cert_file"),
            (rustls::Error::AlertReceived(AlertDescription::UnknownCA), "client_cert_file"),
        ] {
            let text = said(error);
            assert!(text.contains(words), "{text}");
            assert!(!["UnknownIssuer", "EndEntity"].iter().any(|word| text.contains(word)), "{text}");
        }
        assert_eq!(explained(&io::Error::other("no such thing"), "h"), None);
    }
}
