<?php

// Composer's, or Debian's packages.
if (!@include __DIR__.'/../vendor/autoload.php') {
    foreach (['Component/Messenger', 'Component/EventDispatcher', 'Component/Serializer'] as $part) {
        require_once "Symfony/$part/autoload.php";
    }
    require_once 'Psr/Container/autoload.php';
    require_once __DIR__.'/../src/DelaylineTransport.php';
}
