"""Certificates for servers that tests start on loopback."""

import os
import subprocess


NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_client(folder, name, ca=".", password=None):
    """The certificate of a client, NAME.key and NAME.crt, by the CA that make_certificates has made in the folder `ca`. With a password,
    NAME.sealed is the key that needs it."""
    openssl(folder, "req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}/ca.pem", "-CAkey", f"{ca}/ca.key", "-CAcreateserial", "-days", "2",
            "-out", f"{name}.crt")
    if password:
        openssl(folder, "pkcs8", "-topk8", "-in", f"{name}.key", "-passout", f"pass:{password}", "-out", f"{name}.sealed")


def make_certificates(folder):
    """A CA, and with it the certificate of a broker: broker.key, broker.crt, and both in broker.pem. The CA's file."""
    with open(os.path.join(folder, "names"), "w") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(folder, "req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(folder, "req", *NEW_KEY, "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "broker.csr")
    openssl(folder, "x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names",
            "-out", "broker.crt")
    with open(os.path.join(folder, "broker.pem"), "w") as out:
        for name in ("broker.key", "broker.crt"):
            with open(os.path.join(folder, name)) as file:
                out.write(file.read())
    return os.path.join(folder, "ca.pem")
