package com.sun.ts.lib.implementation.sun.jms;

import com.sun.messaging.ConnectionConfiguration;
import com.sun.ts.lib.porting.TSJMSObjectsInterface;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSException;
import jakarta.jms.Queue;
import jakarta.jms.QueueConnectionFactory;
import jakarta.jms.Topic;
import jakarta.jms.TopicConnectionFactory;

/** What the tests of Jakarta Messaging look up: destinations by name, factories of one broker. */
public final class SunRIJMSObjects implements TSJMSObjectsInterface {
    private static <F extends com.sun.messaging.ConnectionFactory> F named(F factory, String name)
            throws JMSException {
        factory.setProperty(ConnectionConfiguration.imqAddressList, System.getProperty("broker"));
        if (name.toUpperCase().contains("DURABLE")) {
            factory.setProperty(ConnectionConfiguration.imqConfiguredClientID, "cts");
        }
        return factory;
    }

    @Override
    public Queue getQueue(String name) throws Exception {
        return new com.sun.messaging.Queue(name);
    }

    @Override
    public Topic getTopic(String name) throws Exception {
        return new com.sun.messaging.Topic(name);
    }

    @Override
    public TopicConnectionFactory getTopicConnectionFactory(String name) throws Exception {
        return named(new com.sun.messaging.TopicConnectionFactory(), name);
    }

    @Override
    public QueueConnectionFactory getQueueConnectionFactory(String name) throws Exception {
        return named(new com.sun.messaging.QueueConnectionFactory(), name);
    }

    @Override
    public ConnectionFactory getConnectionFactory(String name) throws Exception {
        return named(new com.sun.messaging.ConnectionFactory(), name);
    }
}
